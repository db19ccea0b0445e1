"""The command line: quick help, clean output, one-line errors."""

import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from masklens.cli.main import app
from records import make, proved

HEAVY = ("torch", "transformers", "captum", "accelerate", "pyarrow", "matplotlib", "numpy")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_help_imports_nothing_heavy_and_is_quick():
    code = f"""
import sys, time
from masklens.cli.main import app
try:
    app(["--help"])
except SystemExit:
    pass
print([name for name in {HEAVY} if name in sys.modules], time.process_time(), file=sys.stderr)
"""
    done = run_python(code)
    loaded, seconds = done.stderr.rsplit(maxsplit=1)
    assert "evaluate" in done.stdout
    assert loaded == "[]"
    assert float(seconds) < 0.5  # processor time, so that a busy machine does not decide the result


def test_importing_the_package_imports_nothing_heavy():
    code = f"import masklens, sys; print([n for n in {HEAVY} if n in sys.modules], dir(masklens))"
    assert run_python(code).stdout.startswith("[] ['Attribution'")


def test_every_public_name_is_there():
    import masklens

    for name in masklens.__all__:
        found = getattr(masklens, name)
        assert callable(found) or isinstance(found, ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        masklens.nothing  # noqa: B018


def test_version():
    import masklens

    assert call("--version").stdout == f"masklens {masklens.__version__}\n"


def test_methods_as_json_and_as_table():
    import masklens

    listed = json.loads(call("methods", "--json").stdout)
    assert sorted(method["name"] for method in listed) == sorted(masklens.methods())
    assert all(set(method) == {"name", "summary", "cost", "needs", "paper"} for method in listed)


def test_methods_are_listed_by_kind_with_whole_names(monkeypatch):
    import masklens

    monkeypatch.setenv("COLUMNS", "80")
    short, whole = call("methods").stdout, call("methods", "--all").stdout
    presets = {name for name in masklens.methods() if name.startswith(("allennlp_", "thermostat_"))}
    assert all(f"  {name} " in whole for name in masklens.methods())
    assert not any(name in short for name in presets) and f"{len(presets)} more" in short
    assert all(f"  {name} " in short for name in set(masklens.methods()) - presets)
    assert max(map(len, whole.splitlines())) <= 80
    assert short.index("Learned masks") < short.index("Gradients") < short.index("Tokens taken away")
    assert short.index("  gradient ") < short.index("  integrated_gradients ") < short.index("  guan ")


def test_one_method_is_described_with_its_options():
    said = " ".join(call("methods", "erasure").stdout.split())
    assert "beam none for long texts: keep only that many sets" in said and "budget 100000" in said
    said = " ".join(call("methods", "integrated_gradients").stdout.split())
    assert "baselines zero what stands for a missing token: zero, pad, mask or the id of a token" in said
    assert "baselines" not in call("methods", "gradcam").stdout
    found = json.loads(call("methods", "decoded_gradcam", "--json").stdout)
    assert found["options"]["score"] == "gradcam" and found["meanings"]["lm_head"].startswith("the language")
    assert "a fitted lens (--lens), or time" in call("methods", "diffmask").stdout
    assert call("methods", "nothing").exit_code == 2


def test_every_option_of_every_method_is_explained_by_itself():
    from masklens.cli.methods import documentation, option_rows
    from masklens.methods.registry import METHODS, load_all

    load_all()
    for method in METHODS.values():
        meanings = documentation(inspect.getdoc(method.function) or "")[1]
        said = [meaning for _, _, meaning in option_rows(method.options, meanings)]
        assert all(said) and len(set(said)) == len(said), method.name


def test_costs_are_shown_for_the_default_options():
    said = " ".join(call("methods").stdout.split())
    assert "integrated_gradients 100 (2 n_steps) Gradient" in said and "shapley n_samples per token" in said
    assert "diffmask 1.2 with a fitted" in said


@pytest.mark.parametrize(
    "command", ["demo", "explain", "report", "serve", "fit", "evaluate", "corpus", "methods"]
)
def test_help_has_two_examples_and_no_types_of_python(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = call(command, "--help").stdout
    assert said.count(f" masklens {command}") >= 2 and "Examples" in said
    assert f"\n masklens {command}" in said and f"\n  masklens {command}" not in said  # indented alike
    assert not re.search(r"<(str|int|bool|float|path|list)|list\[", said)
    assert "─ Output ─" in said or command == "serve"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("give Subject truncate=True to cut it", "give --truncate to cut it"),
        ("with windows=128", "with --windows 128"),
        ("diffmask without lens= learns", "diffmask without --lens learns"),
        ("give lm_head= the model", "give --lm-head the model"),
        ("over='rows'; use 'inputs'", "--over 'rows'; use 'inputs'"),
        ("Raise budget=, or give beam=", "Raise --option budget=, or give --option beam="),
        ("baselines='x' is not known", "--option baselines='x' is not known"),
        ("give trust_remote_code=True", "give --trust-remote-code"),
        ("no scores at site 3", "no scores at block 2"),
        ("unknown site [9]; this subject has sites (0, 1, 2)",
         "unknown layer block 8; this subject has words, embeddings, block 1"),
        ("sites [0, 4] are over", "words, block 3 are over"),
    ],
)  # fmt: skip
def test_messages_name_options_and_layers(message, told):
    from masklens.cli.wording import in_options
    from masklens.methods.registry import load_all

    load_all()
    assert in_options(message) == told


PYTHON_ONLY = (
    "attn_implementation=", "register_family", "value=", "by=", "replace='mask'", "precision=", "recipe=",
    "validation=", "device_map=", "start=", "method_options=", "do_sample=",
)  # fmt: skip
"""arguments that no command passes on, and advice that is about Python"""


def test_no_message_of_the_library_reaches_the_user_with_an_argument_of_python():
    """Every message that is raised or warned with `name=` in it is translated."""
    from masklens.cli.wording import in_options
    from masklens.methods.registry import load_all

    load_all()
    root = Path(__file__).parents[1] / "src" / "masklens"
    raised = [
        text
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for text in messages(node)
    ]
    assert sum("truncate=True" in text for text in raised) >= 2  # so that the test can fail
    left = [text for text in map(in_options, raised) if re.search(r"(?<!option )\b[a-z_]+=(?!=)", text)]
    assert [text for text in left if not any(name in text for name in PYTHON_ONLY)] == []


def messages(node):
    """The text of an exception that is raised, or of a warning."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        parts = node.exc.args[:1]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
        parts = node.args[:1]
    else:
        return
    for part in parts:
        constants = [one.value for one in ast.walk(part) if isinstance(one, ast.Constant)]
        yield "".join(one for one in constants if isinstance(one, str))


def test_a_warning_is_one_line_without_source(monkeypatch):
    fake_explanations(monkeypatch)
    from masklens.methods import ways

    def explain(_subject, texts, method, **options):
        warnings.warn("something about lens=\nand more", stacklevel=1)
        return [make(text=text, method=method) for text in texts]

    monkeypatch.setattr(ways, "explain", explain)
    done = call("explain", "--model", "m", "one", "--method", first_method())
    assert done.stderr == "warning: something about --lens and more\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_wait_is_shown_on_a_terminal_alone(monkeypatch):
    from masklens import progress
    from masklens.cli.console import working

    monkeypatch.setattr(progress, "MOMENT", 0.0)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with working(), progress.stage("loading the model"):
            time.sleep(0.3)
        assert ("loading the model" in stream.getvalue()) is shown


def test_loading_weights_shows_no_bar():
    done = subprocess.run(
        [sys.executable, "-m", "masklens", "explain", "good", "--method", "gradient", "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr in ("", "loading the packaged model\n")  # on a slow machine
    done = run_python("import masklens; masklens.Subject.default()")
    assert done.returncode == 0 and done.stderr == ""


def test_texts_come_from_standard_input(monkeypatch):
    from masklens.files import formats

    formats.standard_input.cache_clear()
    fake_explanations(monkeypatch)
    common = ["explain", "--model", "m", "--method", first_method(), "--json"]
    done = CliRunner().invoke(app, [*common, "--input", "-"], input="one\n\ntwo\r\n")
    assert [row["text"] for row in json.loads(done.stdout)] == ["one", "two"], done.stderr
    formats.standard_input.cache_clear()
    assert CliRunner().invoke(app, [*common, "--input", "-"], input="").exit_code == 2
    formats.standard_input.cache_clear()
    done = CliRunner().invoke(app, [*common, "-"], input="id,text\n1,one\n")
    assert [row["text"] for row in json.loads(done.stdout)] == ["one"], done.stderr
    done = CliRunner().invoke(app, [*common, "-", "two"], input="one\n")
    assert done.exit_code == 2 and "stands alone" in done.stderr


def test_options_of_a_method(monkeypatch):
    fake_explanations(monkeypatch)
    common = ("explain", "--model", "m", "a", "--method", "lime", "--method", "occlusion", "--json")
    lime, occlusion = json.loads(call(*common, "--option", "n_samples=7", "--option", "baselines=pad").stdout)
    assert lime["settings"]["n_samples"] == 7 and "n_samples" not in occlusion["settings"]
    assert lime["settings"]["baselines"] == occlusion["settings"]["baselines"] == "pad"
    assert "has an option 'beam'" in call(*common, "--option", "beam=3").stderr
    assert "'n_sample'; did you mean 'n_samples'?" in call(*common, "--option", "n_sample=3").stderr
    alone = call("explain", "--model", "m", "a", "--method", "lime", "--option", "n_sample=3")
    assert "its options: n_samples" in alone.stderr and "did you mean 'n_samples'?" in alone.stderr
    refused = call("explain", "--model", "m", "a", "--method", "gradcam", "--option", "baselines=pad")
    assert "gradcam has no option 'baselines'" in refused.stderr
    assert "NAME=VALUE" in call(*common, "--option", "beam").stderr


def test_an_evaluation_fits_the_terminal(monkeypatch, capsys):
    from masklens.cli.console import show
    from masklens.evaluation.table import Cell, Table

    monkeypatch.setenv("COLUMNS", "80")
    cells = {f"metric_{i}": Cell(0.5, 0.25, 0.75, 0.01) for i in range(5)}
    show(Table({"gradcam@7": cells, "random": cells}, seconds={"gradcam@7": 1.5}))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "gradcam, block 6" in said and "@" not in said and "1.50" in said
    assert all(name in said for name in cells)


def test_layers_of_a_corpus_run_are_named():
    from masklens.errors import SiteError
    from masklens.records.layers import site_name, site_number

    assert [site_number(site_name(site)) for site in range(5)] == list(range(5))
    for wrong in ("3", "block", "block 0", "layer 2"):
        with pytest.raises(SiteError, match="block 3"):
            site_number(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a text", "--method", "no_such"], "no method 'no_such'"),
        (["a text", "--out", "x.docx"], "x.docx"),
        ([], "no text was given"),
        (["--input", "no_such.txt"], "no_such.txt"),
        (["--input", "no_such.doc"], ".parquet"),
    ],
)
def test_a_mistake_is_one_line_on_standard_error(arguments, message):
    done = call("explain", "--model", "no_such_folder", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_unknown_options_and_choices_have_exit_code_2():
    assert call("explain", "--nonsense").exit_code == 2


def fake_explanations(monkeypatch):
    """Put a stand-in for the model and the computation behind the command."""
    import masklens
    from masklens.evaluation.verify import Question
    from masklens.methods import explain as explaining
    from masklens.methods import logit_lens, ways
    from masklens.model import subject
    from masklens.reports import report as reporting
    from masklens.tasks.classification import Classification

    def explain(_subject, texts, method, **options):
        print("a library that talks on standard output")
        return [make(text=text, method=method, settings=options) for text in texts]

    asked = Question()

    class Verifier:
        def __init__(self, _subject, texts):
            self.texts = texts

        def at_sites(self, found, sites, replace="mask", question=asked):
            opened = 3 if question.guard == 0.1 else 0
            return [[proved(opened=opened) for _ in found] for _ in sites]

        def random(self, question=asked):
            return [proved(verdict="no better than random") for _ in self.texts]

    model = object.__new__(subject.Subject)
    model.task = Classification(())
    monkeypatch.setattr(subject.Subject, "from_pretrained", lambda path, device=None, **how: model)
    monkeypatch.setattr(explaining, "explain", explain)

    monkeypatch.setattr(ways, "explain", explain)
    monkeypatch.setattr(sys.modules["masklens.evaluation.verify"], "Verifier", Verifier)
    monkeypatch.setattr(reporting, "Verifier", Verifier)
    monkeypatch.setattr(logit_lens, "has_layer_predictions", lambda task: False)
    assert masklens.explain is explain


def first_method():
    import masklens

    return masklens.methods()[0]


def test_a_guard_reaches_the_verification_and_is_told(monkeypatch, tmp_path):
    fake_explanations(monkeypatch)
    asked = ("explain", "--model", "m", "one", "--method", first_method())
    plain, guarded = call(*asked), call(*asked, "--guard", 0.1, "--out", tmp_path / "one.html")
    assert guarded.exit_code == 0 and "3 more kept than it says" in " ".join(guarded.stdout.split())
    assert "more kept" not in plain.stdout
    for guard in (0.1, 0):
        refused = call(*asked, "--guard", guard, "--no-verify")
        assert refused.exit_code != 0 and "--guard needs --verify" in refused.stderr


def test_json_stands_alone_on_standard_output(monkeypatch):
    fake_explanations(monkeypatch)
    done = call("explain", "--model", "m", "one", "two", "--method", first_method(), "--seed", 3, "--json")
    assert done.exit_code == 0, done.stderr
    records = json.loads(done.stdout)
    assert [record["text"] for record in records] == ["one", "two"]
    assert records[0]["settings"]["seed"] == 3
    assert "a library that talks" in done.stderr


def test_target_is_an_id_or_a_name(monkeypatch):
    fake_explanations(monkeypatch)
    for given, passed in [("1", 1), ("positive", "positive")]:
        done = call("explain", "--model", "m", "a", "--method", first_method(), "--target", given, "--json")
        assert json.loads(done.stdout)[0]["settings"]["target"] == passed


def test_heat_map_and_file(monkeypatch, tmp_path):
    import masklens

    fake_explanations(monkeypatch)
    source, out = tmp_path / "texts.csv", tmp_path / "new" / "x.parquet"
    source.write_text("label,text\n1,one\n0,two\n")
    arguments = ["--input", source, "--limit", 1, "--method", first_method(), "--out", out]
    done = call("explain", "--model", "m", *arguments)
    assert done.exit_code == 0, done.stderr
    assert "prediction" in done.stdout
    assert "0.97. These 1 of 2 tokens suffice (0.95). Random orders need 2." in " ".join(done.stdout.split())
    assert "x.parquet" in done.stderr
    assert [(a.text, a.verification) for a in masklens.load(out)] == [("one", proved())]


def test_printed_json_is_the_json_that_is_saved_and_its_verification(monkeypatch, tmp_path):
    fake_explanations(monkeypatch)
    out = tmp_path / "x.json"
    done = call("explain", "--model", "m", "one", "two", "--method", first_method(), "--out", out, "--json")
    printed = json.loads(done.stdout)
    proof = printed[0]["verification"]
    assert proof["passed"] and proof["verdict"] == "sufficient" and proof["removed"] == [1]
    assert (proof["probability_before"], proof["probability_after"]) == (0.97, 0.95)
    assert (proof["share_needed"], proof["random_share"]) == (0.5, 1.0)
    assert printed == json.loads(out.read_text(encoding="utf-8"))


def test_out_writes_a_report(monkeypatch, tmp_path):
    fake_explanations(monkeypatch)
    out = tmp_path / "x.html"
    arguments = ["--model", "m", "one", "--method", first_method(), "--out", out]
    assert call("explain", *arguments).exit_code == 0
    assert '"text":["one"]' in out.read_text(encoding="utf-8")
    assert '"proofs":[[0,1,1,2,0.97,0.95,0.25,0.08,2.0,null,null,[1],0]' in out.read_text(encoding="utf-8")
    assert call("explain", *arguments, "--no-verify").exit_code == 0
    assert '"proofs"' not in out.read_text(encoding="utf-8")


def test_a_model_that_is_not_there_is_one_line(tmp_path):
    done = call("explain", "--model", tmp_path / "none", "hi")
    assert done.exit_code == 2 and done.stdout == ""
    assert "no such folder" in done.stderr and "Traceback" not in done.stderr


def complete(*words):
    """What a bash that asks by typer's protocol is told."""
    environment = os.environ | {
        "_MASKLENS_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["masklens", *words]),
        "COMP_CWORD": str(len(words)),
    }
    code = f"""
import sys
sys.argv = ["masklens"]
from masklens.cli.main import main
try:
    main()
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    return done.stdout.split()


def test_the_shell_completes_commands_options_choices_and_methods():
    assert complete("ex") == ["explain"]
    assert {"fit", "serve", "report"} <= set(complete(""))
    assert "--lm-head" in complete("explain", "--l")
    assert complete("fit", "--over", "") == ["inputs", "states"]
    assert complete("explain", "--method", "decoded") == ["decoded_gradcam"]
    assert complete("corpus", "--method", "occ") == ["occlusion"]


def test_completed_methods_are_the_registered_ones():
    import masklens
    from masklens.cli.completion import method_names

    assert method_names() == masklens.methods()


def test_bash_completes_with_the_script_that_is_shown(monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    script = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="masklens").stdout
    program = Path(sys.executable).with_name("masklens")
    asked = f"COMP_WORDS=(masklens explain --method gradi); COMP_CWORD=3; _masklens_completion {program}"
    bash = ["bash", "-c", f'{script}\n{asked}\necho "${{COMPREPLY[@]}}"']
    done = subprocess.run(bash, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["gradient", "gradient_shap"], done.stderr
