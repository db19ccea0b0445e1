"""What the documentation shows is true: its code runs, its links lead somewhere, its reference is current.

The blocks of one page share a namespace and a folder with a few small files. Placeholders become the packaged
model, and lenses are fitted in a few steps: that a block runs is what is tested here, not how good a lens is.
A block that cannot be run says why, in a comment right before it: <!-- not run: reason -->.
"""

import contextlib
import copy
import csv
import importlib.util
import io
import json
import pkgutil
import re
import shlex
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import masklens
from masklens.cli.demo import read_reviews
from masklens.cli.main import app
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import Settings
from masklens.methods import registry
from masklens.model import int8
from masklens.model.default import HOME

ROOT = Path(__file__).parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "results").glob("*/*.md"))
FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
RUN, SHOWN = ("python", "sh"), ("text", "diff")
PLACEHOLDERS = {
    "PATH_OR_HUB_ID": "model",
    "PRETRAINED_LM": "model",
    "LENS_FOLDER": "model/lens-inputs",
    "CHAT_MODEL": "chat",
}
NEEDS_LENS = re.compile(r"LENS_FOLDER|packaged|masklens (?:demo|serve|report|explain)(?!.*--model)")
LIBRARIES = {"part_of_speech": "spacy"}
"""what blocks need that speak of a thing, and that may not be installed"""
SLOW = {"corpus.md", "evaluation.md", "quickstart.md"}


class Block(NamedTuple):
    line: int
    language: str
    code: str
    why_not: str | None


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start("code")), found["language"], found["code"], found["why"])
        for found in FENCE.finditer(text)
    ]


def to_run(page):
    return [b for b in blocks_of(page) if b.language in RUN and not b.why_not]


def missing(block):
    """The optional library that a block needs and that is not there."""
    wanted = [library for word, library in LIBRARIES.items() if word in block.code]
    return next((library for library in wanted if importlib.util.find_spec(library) is None), None)


def filled_in(code):
    for name, value in PLACEHOLDERS.items():
        code = code.replace(name, value)
    return code


def run_python(block, page, namespace):
    padded = "\n" * block.line + filled_in(block.code)  # so that a traceback names the line of the page
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(padded, str(page), "exec"), namespace)


def run_shell(block, page):
    for command in filled_in(block.code).replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if not words:
            continue
        assert words[0] == "masklens", f"{page.name}:{block.line}: {words[0]} cannot be run here; say why"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{page.name}: {command}\n{done.output}\n{done.exception!r}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The packaged model as transformers reads it: not in 8 bits, as it is kept."""
    folder = tmp_path_factory.mktemp("packaged") / "model"
    shutil.copytree(HOME, folder, ignore=shutil.ignore_patterns(int8.FILE))
    weights = int8.unpacked(load_file(HOME / int8.FILE))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A tiny random decoder with a chat template."""
    from tests import tiny

    folder = tmp_path_factory.mktemp("decoder") / "chat"
    tiny.model("gpt2", "causal", n_positions=256).save_pretrained(folder)
    tokenizer = copy.deepcopy(tiny.byte_bpe())
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, model, chat):
    """A folder with the files that the pages speak of; the current one."""
    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(model)
    Path("chat").symlink_to(chat)
    Path("messages.json").write_text('[{"role": "user", "content": "who ?"}]', encoding="utf-8")
    texts, labels = read_reviews()
    rows = [{"text": t, "label": label} for t, label in zip(texts[:6], labels[:6], strict=True)]
    with Path("reviews.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(rows)
    Path("texts").mkdir()
    lines = [json.dumps(row) for row in rows]
    for number in (1, 2):
        Path(f"texts/{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def quick_fit(monkeypatch):
    """DiffMask.fit with so few steps and sites that it takes a second."""
    fit = DiffMask.fit.__func__

    def quick(cls, subject, texts, *args, **options):
        few = {"steps": 3, "hidden": 4, "batch_size": 4, "held_out": 0.5, "sites": (0, subject.sites[-1])}
        return fit(cls, subject, texts, *args, **{**options, **few})

    monkeypatch.setattr(DiffMask, "fit", classmethod(quick))


@pytest.fixture
def own_registry(monkeypatch):
    """A page may register methods: they are gone after the test."""
    registry.load_all()
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))


def slow_marked(page):
    return pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else [])


@pytest.mark.parametrize("page", [slow_marked(page) for page in PAGES if to_run(page)])
def test_the_code_of_a_page_runs(page, folder, quick_fit, own_registry):
    blocks, namespace = to_run(page), {"__name__": "docs"}
    if any(NEEDS_LENS.search(b.code) for b in blocks) and not (HOME / "lens-inputs").exists():
        pytest.skip("the packaged lenses are not there; recipes/default_model.py makes them")
    matplotlib.use("Agg")
    left_out = {library for block in blocks if (library := missing(block))}
    for block in blocks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if missing(block):
                continue
            if block.language == "python":
                run_python(block, page, namespace)
            else:
                run_shell(block, page)
    if left_out:
        pytest.skip(f"ran all blocks but those that need {', '.join(left_out)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page):
    for block in blocks_of(page):
        assert block.language in (*RUN, *SHOWN), f"{page.name}:{block.line}: name the language"
    assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(blocks_of(page))


@pytest.mark.parametrize("page", PAGES + RESULTS, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("folder", sorted((ROOT / "results").iterdir()), ids=lambda folder: folder.name)
def test_a_folder_of_results_says_how_it_was_made(folder):
    """A README with command, commit and settings; results as data and as a page; figures as PNG; no more."""
    kinds = ("results.json", "results.md", "README.md", "*.png")
    ignored = ("parts", "lenses", "kept", "gru")  # of a run in this folder, not committed
    there = {path.name for path in folder.iterdir()} - set(ignored)
    assert there == {path.name for kind in kinds for path in folder.glob(kind)} and len(there) >= 3
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"python -m experiments {folder.name} " in page and "Commit: " in page and "Settings: " in page
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["command"].startswith(f"python -m experiments {folder.name} ") and results["commits"]
    figures = re.findall(r"\]\(([^)]+\.png)\)", (folder / "results.md").read_text(encoding="utf-8"))
    assert sorted(figures) == sorted(path.name for path in folder.glob("*.png"))


def test_pages_name_commands_that_are_there():
    """`python -m experiments NAME`, `python -m benchmarks NAME` and files of benchmarks/ exist."""
    for page in PAGES + RESULTS:
        text = " ".join(page.read_text(encoding="utf-8").split())
        for name in re.findall(r"python -m experiments (\w+)", text):
            assert (ROOT / "experiments" / name / "experiment.py").exists(), f"{page}: {name}"
        for name in re.findall(r"python -m benchmarks (\w+)", text):
            assert (ROOT / "benchmarks" / f"bench_{name}.py").exists(), f"{page}: {name}"
        for path in re.findall(r"benchmarks/[\w/]+\.py", text):
            assert (ROOT / path).exists(), f"{page}: {path}"
        assert "python -m benchmarks." not in text and "masklens reproduce" not in text, page


def test_every_page_can_be_reached():
    linked = {m for page in PAGES for m in re.findall(r"\(([\w/.]+\.md)\)", page.read_text(encoding="utf-8"))}
    reached = {Path(target).name for target in linked} | {"README.md"}
    assert {page.name for page in PAGES} <= reached


def test_every_public_name_is_on_a_reference_page():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    shown = set(re.findall(r"^::: masklens\.(\w+)$|^### `(\w+)\(\)`$", "\n".join(pages), re.MULTILINE))
    assert {name for pair in shown for name in pair if name} >= set(masklens.__all__)


def test_names_that_pages_show_exist():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert pkgutil.resolve_name(path) is not None, f"{page.name} shows {path}"


def test_the_figures_for_choosing_are_those_of_the_results():
    results = json.loads((ROOT / "results" / "saliency" / "results.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\|((?: \d\.\d{3} \|){4})", page, re.MULTILINE)
    names = {"decoded_gradcam": None, "gradcam": "gradcam@1"}
    assert len(rows) == 14
    for name, figures in rows:
        expected = []
        for data in ("sst2", "agnews"):
            row = results[data]["mpnet"][names.get(name, name) or results["chosen"][data]["row"]]
            expected += [f"{row['revealing']:.3f}", f"{row['hiding']:.3f}"]
        assert figures.replace("|", "").split() == expected, name


def test_the_settings_that_are_told_are_the_settings():
    page = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    told = re.findall(r"`(\w+)=([^`]+)`", page[page.index("### Our settings") : page.index("`Settings` in")])
    assert len(told) >= 8
    for name, value in told:
        assert repr(getattr(Settings(), name)) == value, name


def test_a_block_that_fails_fails_the_test(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n<!-- not run: x -->\n```sh\nmake\n```\n", encoding="utf-8")
    first, second = blocks_of(page)
    assert (second.language, second.why_not) == ("sh", "x") and to_run(page) == [first]
    with pytest.raises(ZeroDivisionError):
        run_python(first, page, {})
    with pytest.raises(AssertionError, match="say why"):
        run_shell(second, page)
    with pytest.raises(AssertionError, match="no method 'none'"):
        run_shell(first._replace(code="masklens explain --model x --method none text"), page)
