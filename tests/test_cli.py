"""The command line: quick help, clean output, one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from masklens.cli import app
from records import make

HEAVY = ("torch", "transformers", "captum", "accelerate", "pyarrow", "matplotlib", "numpy")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_help_imports_nothing_heavy_and_is_quick():
    code = f"""
import sys, time
from masklens.cli import app
try:
    app(["--help"])
except SystemExit:
    pass
print([name for name in {HEAVY} if name in sys.modules], time.process_time(), file=sys.stderr)
"""
    done = run_python(code)
    loaded, seconds = done.stderr.rsplit(maxsplit=1)
    assert "reproduce" in done.stdout
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
    assert "summary" in call("methods").stdout


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
    assert call("reproduce", "nonsense", "--out", "x").exit_code == 2


def fake_explanations(monkeypatch):
    """Put a stand-in for the model and the computation behind the command."""
    import masklens
    from masklens import evaluation, explaining, reporting, subject
    from masklens.evaluation.verifying import Verification
    from masklens.tasks import Classification

    def explain(_subject, texts, method, **options):
        print("a library that talks on standard output")
        return [make(text=text, method=method, settings=options) for text in texts]

    def verify(_subject, found, keep=0.5, replace="mask", site=None, guard=None):
        return [Verification(0.25, True, 0.5, (1,), 3 if guard == 0.1 else 0) for _ in found]

    model = object.__new__(subject.Subject)
    model.task = Classification(())
    monkeypatch.setattr(subject.Subject, "from_pretrained", lambda path, device=None, **how: model)
    monkeypatch.setattr(explaining, "explain", explain)
    monkeypatch.setattr(evaluation, "verify", verify)
    monkeypatch.setattr(reporting, "verify", verify)
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
    refused = call(*asked, "--guard", 0.1, "--no-verify")
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
    assert "without good (50% of the tokens) the prediction stays" in done.stdout
    assert "x.parquet" in done.stderr
    assert [a.text for a in masklens.load(out)] == ["one"]


def test_printed_json_is_the_json_that_is_saved_and_its_verification(monkeypatch, tmp_path):
    fake_explanations(monkeypatch)
    out = tmp_path / "x.json"
    done = call("explain", "--model", "m", "one", "two", "--method", first_method(), "--out", out, "--json")
    printed = json.loads(done.stdout)
    proof = {"divergence": 0.25, "prediction_kept": True, "share_removed": 0.5, "removed": [1]}
    proof["opened"] = 0
    assert [row.pop("verification") for row in printed] == [proof] * 2
    assert printed == json.loads(out.read_text(encoding="utf-8"))


def test_out_writes_a_report(monkeypatch, tmp_path):
    fake_explanations(monkeypatch)
    out = tmp_path / "x.html"
    arguments = ["--model", "m", "one", "--method", first_method(), "--out", out]
    assert call("explain", *arguments).exit_code == 0
    assert '"text":["one"]' in out.read_text(encoding="utf-8")
    assert '"proofs":[[0.25,1,0.5,[1]]' in out.read_text(encoding="utf-8")
    assert call("explain", *arguments, "--no-verify").exit_code == 0
    assert '"proofs"' not in out.read_text(encoding="utf-8")


def test_a_model_that_is_not_there_is_one_line(tmp_path):
    done = call("explain", "--model", tmp_path / "none", "hi")
    assert done.exit_code == 2 and done.stdout == ""
    assert "no model could be loaded" in done.stderr and "Traceback" not in done.stderr


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
from masklens.cli import main
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
    assert {"fit", "serve", "reproduce"} <= set(complete(""))
    assert "--lm-head" in complete("explain", "--l")
    assert complete("fit", "--over", "") == ["inputs", "states"]
    assert complete("explain", "--method", "decoded") == ["decoded_gradcam"]
    assert complete("corpus", "--method", "occ") == ["occlusion"]


def test_completed_methods_are_the_registered_ones():
    import masklens
    from masklens.completion import method_names

    assert method_names() == masklens.methods()


def test_bash_completes_with_the_script_that_is_shown(monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    script = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="masklens").stdout
    program = Path(sys.executable).with_name("masklens")
    asked = f"COMP_WORDS=(masklens explain --method gradi); COMP_CWORD=3; _masklens_completion {program}"
    bash = ["bash", "-c", f'{script}\n{asked}\necho "${{COMPREPLY[@]}}"']
    done = subprocess.run(bash, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["gradient", "gradient_shap"], done.stderr
