"""Options are checked before the work, with a hint where they are nearly right; empty rows get one rule."""

import json

import pytest
from typer.testing import CliRunner

import masklens as ml
import tiny
from masklens.cli.main import app
from masklens.corpus import Job, run
from masklens.corpus.local import devices
from masklens.errors import MasklensError, MethodError, ModelError, TargetError, did_you_mean
from masklens.model.devices import check_device
from masklens.model.places import gguf_place
from masklens.reports.page import Entry, report_data

COMMANDS = ("explain", "fit", "evaluate", "report")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a model, and files of texts with labels."""
    folder = tmp_path_factory.mktemp("work")
    subject = tiny.subject("bert")
    subject.module.save_pretrained(folder / "model")
    subject.tokenizer.save_pretrained(folder / "model")
    labels = subject.task.labels
    (folder / "x.csv").write_text(f"text,label\na dull plot,{labels[0]}\na fast car,{labels[1]}\n")
    (folder / "wrong.csv").write_text(f"text,label\na dull plot,{labels[0]}\na fast car,{labels[1]}s\n")
    (folder / "empty.csv").write_text('text,label\na dull plot,x\n"  ",x\na fast car,x\n')
    (folder / "blank.txt").write_text("a dull plot\n\n   \na fast car\n")
    return folder


def call(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def refused(done, *words):
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert "Traceback" not in done.stderr and isinstance(done.exception, SystemExit)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1 and all(word in lines[0] for word in words), done.stderr


@pytest.fixture
def no_work(monkeypatch):
    """Nothing is loaded and no forward pass is made."""
    for module in ("inputs", *COMMANDS, "serve"):
        begun = lambda *a, **k: pytest.fail("a model is loaded")  # noqa: E731
        monkeypatch.setattr(f"masklens.cli.{module}.load_subject", begun)


BEFORE_LOADING = [
    (["evaluate", "a", "--metric", "hidding"], "no metric 'hidding'", "did you mean 'hiding'?"),
    (["evaluate", "a", "--method", "gradcams"], "no method 'gradcams'", "did you mean 'gradcam'?"),
    (["report", "a", "--method", "Gradient_"], "no method", "did you mean 'gradient'?"),
    (["explain", "a", "--method", "oclusion"], "no method", "did you mean 'occlusion'?"),
    (["explain", "a", "--seed", "-1"], "seed is -1", ""),
    (["explain", "a", "--seed", str(2**70)], "seed is", "whole number"),
    (["evaluate", "a", "--seed", str(2**70)], "seed is", "whole number"),
    (["report", "a", "--seed", str(2**70)], "seed is", "whole number"),
    (["serve", "--seed", str(2**70)], "seed is", "whole number"),
    (["explain", ""], "text 1 of the command line is empty", ""),
    (["explain", "a", " "], "text 2 of the command line is empty", ""),
]


@pytest.mark.parametrize("case", BEFORE_LOADING, ids=lambda case: " ".join(case[0])[:40])
def test_what_can_be_checked_without_the_model_is(case, no_work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, *words = case
    done = call(*arguments)
    assert done.exit_code == 2 and all(word in " ".join(done.stderr.split()) for word in words), done.stderr


def test_a_fit_checks_its_numbers_before_it_loads(no_work, folder, tmp_path):
    for option, value, words in (("--margin", 0, "margin is 0"), ("--seed", 2**70, "seed is")):
        refused(call("fit", "--data", folder / "x.csv", "--out", tmp_path / "lens", option, value), words)


def test_extras_that_are_missing_are_told_before_the_model_is_loaded(no_work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import masklens.analysis
    import masklens.reports.serve

    def lacks(*_):
        raise MethodError("part-of-speech tags need spaCy")

    monkeypatch.setattr(masklens.analysis, "load_spacy", lacks)
    refused(call("report", "a", "--parts-of-speech"), "spaCy")
    monkeypatch.setattr(masklens.reports.serve, "find_spec", lambda name: None)
    refused(call("serve"), "pip install 'masklens[serve]'")


def test_ray_is_looked_for_before_the_input(monkeypatch, folder, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    job = Job(str(folder / "model"), str(tmp_path / "none.txt"))
    with pytest.raises(MasklensError, match="install it with: pip install 'masklens\\[ray\\]'"):
        run(job, str(tmp_path / "out"), ray="auto")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [",", "cpu,", " , ", "cqu", "cuda:99", "cpu,nonsense"])
def test_a_device_that_is_none_is_told(asked, folder, tmp_path):
    with pytest.raises(ModelError, match="cannot be moved to device .* torch can use here: cpu"):
        devices(asked)
    command = ["--model", folder / "model", "--input", folder / "x.csv", "--device", asked]
    refused(call("corpus", *command, "--out", tmp_path / "out"), "cannot be moved to device")
    refused(call("explain", *command), "cannot be moved to device")
    assert not (tmp_path / "out").exists()


def test_the_devices_that_are_there_are_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ModelError, match="device 'cuda:2': .* can use here: cpu, cuda:0, cuda:1"):
        check_device("cuda:2")
    assert check_device("cuda:1") is None


def test_a_device_is_checked_before_a_model_is_loaded(tmp_path):
    with pytest.raises(ModelError, match="cannot be moved to device 'cqu'"):
        ml.Subject.from_pretrained(tmp_path / "none", device="cqu")
    check_device("cpu")


def test_a_gguf_file_is_its_folder_and_its_name(tmp_path, folder):
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    assert gguf_place(one) == (one, None)  # no such file
    one.touch()
    assert gguf_place(one) == gguf_place(str(tmp_path)) == (tmp_path, "one.gguf")
    two.touch()
    assert gguf_place(two) == (tmp_path, "two.gguf")
    with pytest.raises(ModelError, match="holds one.gguf, two.gguf; give the path of one of them"):
        ml.Subject.from_pretrained(tmp_path)
    two.unlink()
    (tmp_path / "config.json").touch()
    assert gguf_place(tmp_path) == (tmp_path, None) and gguf_place("owner/name") == ("owner/name", None)


def test_a_folder_that_is_none_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.bin").touch()
    for place, words in (
        (tmp_path / "empty", "is empty: no config.json"),
        (tmp_path / "other", "holds weights.bin, but no config.json"),
        (tmp_path / "nowhere", "no such folder"),
        (folder / "modell", "no such folder: .*modell; did you mean 'model'\\?"),
        ("./modell", "no such folder: modell; did you mean 'model'\\?"),
        (folder / "x.csv", "is a file; give the folder"),
    ):
        with pytest.raises(ModelError, match=words):
            ml.Subject.from_pretrained(place)
        with pytest.raises(ModelError, match=words):
            run(Job(str(place), str(folder / "x.csv")), str(tmp_path / "out"))
        with pytest.raises(MethodError, match=f"{words}.*give lm_head="):
            ml.explain(tiny.subject("bert"), "a plot", "decoded_gradcam", lm_head=str(place))
    assert not list((tmp_path).glob("out/data/*"))


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "no_such"}', '{"architectures": ["X"]}', ""])
def test_a_config_that_is_none_is_one_line(content, folder, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError) as error:
        ml.Subject.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def test_weights_that_are_none_are_one_line(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "model" / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((folder / "model" / "tokenizer.json").read_bytes())
    weights = (folder / "model" / "model.safetensors").read_bytes()
    for content in (b"", b"x", weights[:100], weights[:-10]):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError) as error:
            ml.Subject.from_pretrained(tmp_path)
        assert "\n" not in str(error.value)


def test_gold_labels_are_checked_before_anything_is_explained(folder, monkeypatch):
    subject = tiny.subject("bert")
    found = ml.explain(subject, ["a dull plot", "a fast car"], "gradient")
    monkeypatch.setattr(ml.Subject, "run", lambda *a, **k: pytest.fail("the model is run"))
    good, wrong = subject.task.labels[0], subject.task.labels[1] + "s"
    command = ["evaluate", "--model", folder / "model", "--label-column", "label"]
    refused(call(*command, "--input", folder / "wrong.csv"), f"no class {wrong!r}", "did you mean")
    refused(call(*command, "a third text", "--input", folder / "x.csv"), "2 gold labels for 3 texts")
    refused(call(*command, "--input", folder / "x.csv", "--label-column", "lable"), "did you mean 'label'?")
    for labels, words in (([good, wrong], "no class"), ([good], "1 gold labels for 2 texts")):
        with pytest.raises(TargetError, match=words):
            ml.evaluate(subject, {"a": found}, labels)
    with pytest.raises(TargetError, match="1 gold labels for 2 texts"):
        report_data([Entry(a, "x") for a in found], "title", [good])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": ["film"], "scores": [1.0]}, "'film'"),
        ({"tokens": ["plot"], "scores": [float("nan")]}, "finite"),
        ({"tokens": ["plot"], "scores": [1.0, 2.0]}, "1 tokens and 2 scores"),
    ],
)
def test_imported_attributions_are_checked_by_evaluate_and_report(row, words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ml.Subject, "run", lambda *a, **k: pytest.fail("the model is run"))
    (tmp_path / "theirs.json").write_text(json.dumps([{"text": "a plot"} | row]))
    refused(call("evaluate", "--model", folder / "model", "--attributions", "theirs.json"), "row 1 of", words)
    refused(call("report", "--input", "theirs.json"), "row 1 of", words)


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_explained_answers_are_no_attributions(ending, tmp_path, no_work):
    made = ml.explain_generation(tiny.subject("gpt2", "causal"), "the plot is", max_new_tokens=2)
    file = ml.save(made, tmp_path / f"answers.{ending}")
    refused(call("evaluate", "--attributions", file), f"{file} holds explained answers", "verify_generation")
    refused(call("report", "--input", file), f"{file} holds explained answers", "masklens.report")


def test_hints():
    assert did_you_mean("gradCam", ["gradcam", "random"]) == "; did you mean 'gradcam'?"
    assert did_you_mean("xyz", ["gradcam", "random"]) == ""
    subject = tiny.subject("bert")
    for action, words in (
        (lambda: ml.explain(subject, "a", "gradient", nrom="l1"), "did you mean 'norm'"),
        (lambda: ml.explain(subject, "a", target="negatif"), "did you mean 'negative'"),
        (lambda: ml.DiffMask.fit(subject, ["a"] * 9, step=3), "did you mean 'steps'"),
    ):
        with pytest.raises(MasklensError, match=words):
            action()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_row_ends_a_command(command, folder, tmp_path, monkeypatch, no_work):
    monkeypatch.chdir(tmp_path)
    given = ["--data" if command == "fit" else "--input", folder / "empty.csv"]
    where = ["--out", tmp_path / "lens"] if command == "fit" else []
    monkeypatch.setattr("masklens.cli.report.load_subject", lambda *a: tiny.subject("bert"))
    done = call(command, *given, *where, *(["--method", "random"] if command == "report" else []))
    refused(done, f"row 2 of {folder / 'empty.csv'} cannot be used: column 'text' is empty")


def test_an_empty_row_is_set_aside_by_a_corpus_run(folder, tmp_path):
    job = Job(str(folder / "model"), str(folder / "empty.csv"), "random", verify=False)
    assert run(job, str(tmp_path / "out"))[:2] == (2, 1)
    (reject,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert reject == {"row_id": f"{folder / 'empty.csv'}:2", "reason": "column 'text' is empty"}


def test_blank_lines_are_no_rows_anywhere(folder, tmp_path):
    from masklens.files.reading import read_texts

    assert read_texts(str(folder / "blank.txt")) == ["a dull plot", "a fast car"]
    job = Job(str(folder / "model"), str(folder / "blank.txt"), "random", verify=False)
    assert run(job, str(tmp_path / "out"))[:2] == (2, 0)
