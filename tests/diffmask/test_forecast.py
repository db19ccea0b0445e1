"""What is said before a lens is fitted: texts, passes, time; and that saying it changes nothing."""

import json
import time
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import sevens
import tiny
from lens_parts import QUICK, objective
from masklens.cli.main import app
from masklens.diffmask import forecast
from masklens.diffmask.class_bias import ClassBias
from masklens.diffmask.forecast import between, describe_texts, judge_texts
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import Training

FIT = {"steps": 40, "lr": 1e-2, "batch_size": 32, "margin": 0.05, "hidden": 16, "evaluate_every": 20}


def test_texts_and_passes_are_counted():
    said = describe_texts(900, 50, 51, 2000, 128)
    assert "900 texts to train on, 50 to validate, 51 held out" in said
    assert "2,000 steps of 128 texts: 284 passes" in said
    assert "20 steps of 32 texts: 64 passes" in describe_texts(10, 1, 1, 20, 32)
    assert "0.05 passes" in describe_texts(12_800, 1, 1, 5, 128)


def test_few_and_enough():
    assert "499 training texts are few" in judge_texts(499)
    assert "500 training texts are enough" in judge_texts(500)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (3.2, 8.9, "4 to 9 seconds"),
        (0.1, 0.2, "1 seconds"),
        (61, 150, "2 to 3 minutes"),
        (3600, 9000, "1.0 to 2.5 hours"),
    ],
)
def test_durations(low, high, said):
    assert between(low, high) == said


def test_a_fit_says_beforehand_what_it_takes_and_is_the_same():
    said = []
    silent = DiffMask.fit(sevens.subject(), sevens.texts(600), over="states", **FIT)
    told = DiffMask.fit(sevens.subject(), sevens.texts(600), over="states", report=said.append, **FIT)
    for name, value in silent.probe.state_dict().items():
        assert torch.equal(value, told.probe.state_dict()[name]), name
    assert [d.divergence for d in silent.diagnostics] == [d.divergence for d in told.diagnostics]
    texts, enough, duration = said
    assert "540 texts to train on, 30 to validate, 30 held out" in texts
    assert "enough" in enough and "on cpu" in duration


def test_slow_steps_are_foretold(monkeypatch):
    """A model that takes 20 ms a run: 40 steps take 0.8 s, and each evaluation two runs or more."""
    found = []
    plain = forecast.time_left
    monkeypatch.setattr(forecast, "time_left", lambda training: found.append(plain(training)) or found[-1])
    trained = []

    def timed(self, show_progress=False, run=Training.run):
        start = time.perf_counter()
        run(self, show_progress)
        trained.append(time.perf_counter() - start)

    monkeypatch.setattr(Training, "run", timed)
    subject = sevens.subject()
    subject.module.register_forward_hook(lambda *_: time.sleep(0.02))
    DiffMask.fit(subject, sevens.texts(80), over="states", report=lambda line: None, **FIT)
    (low, high), (real,) = found[0], trained
    assert 0.8 * 0.8 <= low < high
    assert low / 3 <= real <= high * 3  # a busy machine must not decide the result


def test_steps_and_evaluations_that_are_left_are_counted(monkeypatch):
    """Steps that take 1 s and evaluations that take 10 s; calibrating takes as long as some."""
    training = Training(objective(), replace(QUICK, steps=100, evaluate_every=20))
    monkeypatch.setattr(
        forecast, "_timed", lambda training, work: 10.0 if work == training.objective.judge else 1.0
    )
    for done, left, evaluations in ((0, 100, 5), (60, 40, 2)):
        training.step = done
        judging = 10 * (evaluations + forecast.CALIBRATION)
        assert forecast.time_left(training) == pytest.approx((0.8 * left + judging, 1.2 * left + judging))


def test_a_fit_taken_up_again_says_where_it_goes_on(tmp_path, monkeypatch):
    said = []
    fit = {**FIT, "folder": tmp_path, "report": said.append}
    one_step = Training._one_step

    def interrupted(self):
        if self.step == 25:
            raise KeyboardInterrupt
        return one_step(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "_one_step", interrupted)
        DiffMask.fit(sevens.subject(), sevens.texts(600), over="states", **fit)
    for start in ("going on from step 20: about ", "all steps are done already"):
        DiffMask.fit(sevens.subject(), sevens.texts(600), over="states", **fit)
        assert said[-1].startswith(start)


def test_the_command_tells_it_on_standard_error(tmp_path, monkeypatch):
    found = ClassBias(2, "dull", 0.0, 0.5, "dull")
    monkeypatch.setattr("masklens.diffmask.lens.class_biases", lambda *given: [found])
    tiny.model("bert").save_pretrained(tmp_path / "model")
    tiny.FAMILIES["bert"].tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(f"a fast movie {i}" for i in range(40)))
    given = ["--model", tmp_path / "model", "--data", tmp_path / "texts.txt", "--out", tmp_path / "lens"]
    done = CliRunner().invoke(app, ["fit", *map(str, given), "--steps", "2", "--json"])
    assert done.exit_code == 0, done.stderr
    assert [row["site"] for row in json.loads(done.stdout)] == list(range(len(json.loads(done.stdout))))
    said = done.stderr
    assert "36 texts to train on, 2 to validate, 2 held out to judge the lens; 2 steps of 128 texts" in said
    assert said.count("36 training texts are few") == 1
    assert said.index("seconds on cpu") < said.index("block 1: 0% is kept") < said.index("wrote ")
    assert sorted(p.name for p in (tmp_path / "lens").iterdir()) == [
        "README.md",
        "lens.json",
        "lens.safetensors",
    ]
