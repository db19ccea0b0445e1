"""`python -m experiments`: what it lists, what it refuses, and that results are not lost."""

import subprocess
import sys
from pathlib import Path

import pytest
from experiments.parts import Parts, asked_for, check_out, check_wanted

from experiments import __main__ as command
from masklens.errors import FileError, MethodError

ROOT = Path(__file__).parents[2]


def test_help_lists_the_experiments():
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in ("toy", "sst", "squad", "saliency", "emergence"):
        assert f"\n    {name}" in done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["toy", "--out", "x", "--jobs", "2"], "toy does not take --jobs; it takes --out, --seed, --steps"),
        (["sst", "--out", "x", "--model-dir", "x", "--data", "x", "--alone"], "sst does not take --alone"),
        (["sst", "--out", "x"], "the following arguments are required: --model-dir, --data"),
        (["squad", "--out", "x", "--model-dir", "none", "--data", "x"], "none has none of mpnet-squad"),
        (["emergence", "--out", "x", "--task", "chess"], "no task 'chess'; there are lexical"),
        (["toy", "--out", "x", "--steps", "0"], "argument --steps: invalid count value: '0'"),
        (["chess"], "invalid choice: 'chess'"),
    ],
)
def test_what_is_wrong_is_one_line(given, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        command.main(given)
    written = capsys.readouterr().err
    assert stopped.value.code == 2 and said in written and written.count("\n") == 1


def test_options_reach_the_experiment(monkeypatch, tmp_path, capsys):
    asked = {}

    class Module:
        @staticmethod
        def run(**options):
            asked.update(options)
            (tmp_path / "results.md").write_text("# Found")

    monkeypatch.setattr(command, "import_module", lambda name: Module)
    command.main(["toy", "--seed", "3", "--seed", "4", "--out", str(tmp_path)])
    assert asked == {"out": tmp_path, "seeds": [3, 4]} and "# Found" in capsys.readouterr().out


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_every_option_is_one_that_the_experiment_takes(name):
    import inspect
    from importlib import import_module

    takes = inspect.signature(import_module(f"experiments.{name}.experiment").run).parameters
    assert set(command.EXPERIMENTS[name].options) <= set(takes)
    needed = {n for n, p in takes.items() if p.default is p.empty}
    assert needed == {n for n in command.EXPERIMENTS[name].options if command.OPTIONS[n].get("required")}


def test_results_without_their_parts_are_not_overwritten(tmp_path):
    check_out(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(FileError, match="would be overwritten; give another --out"):
        check_out(tmp_path)
    (tmp_path / "parts").mkdir()
    check_out(tmp_path)


def test_a_part_is_done_once_and_one_that_cannot_be_done_is_left_out(tmp_path):
    parts, said = Parts(tmp_path / "model-seed0", {"seed": 0}), []
    parts.do("lens/inputs", lambda: {"found": 1}, said.append)
    parts.do("lens/inputs", lambda: {"found": 2}, said.append)
    found = parts.read("lens/inputs")
    assert found["found"] == 1 and found["settings"]["seed"] == 0 and found["settings"]["commit"]

    def broken():
        raise MethodError("needs spaCy")

    parts.do("speech", broken, said.append)
    assert said[0].startswith("model-seed0: lens/inputs: ") and said[1:] == [
        "model-seed0: speech: left out (needs spaCy)"
    ]
    assert set(parts.done(["speech", "lens/inputs"])) == {"lens/inputs"}
    with pytest.raises(MethodError, match="speech has to be done first"):
        parts.read("speech")


def test_a_beginning_stands_for_all_parts_of_the_name():
    names = ["lens/inputs/0", "lens/inputs/1", "lens/states/0", "figures"]
    assert asked_for(names, ["lens/inputs", "figures"]) == [*names[:2], "figures"]
    assert asked_for(names, None) == names
    check_wanted(["lens"], names)
    with pytest.raises(MethodError, match="no part 'len'; there are lens/inputs/0"):
        check_wanted(["len"], names)
