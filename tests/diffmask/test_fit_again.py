"""A fit goes on only from what it began itself, holds its folder, and says when it has found out nothing."""

import multiprocessing
import os
import random
import signal
import threading
import warnings

import pytest
import torch
from torch import nn

import sevens
from masklens.diffmask import lens as lens_source
from masklens.diffmask.lens import ALL_KEPT, FEWEST_HELD_OUT, DiffMask, card
from masklens.diffmask.trainer import CHECKPOINT, Diagnostic, Training
from masklens.errors import FileError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SHORT = {"steps": 5, "lr": 3e-3, "batch_size": 32, "margin": 0.05, "hidden": 16}
TEXTS = sevens.texts(40)


def fit(folder=None, model=None, texts=TEXTS, **how):
    return DiffMask.fit(sevens.subject(model), texts, folder=folder, **{"over": "states", **SHORT, **how})


class Swapped(sevens.CountSevens):
    """The same numbers in another order: means cannot tell."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.embed.weight.copy_(self.embed.weight.flip(0))


OTHER_HELD_OUT = [*sevens.texts(3, seed=5)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": Swapped}, "model"),
        ({"texts": sevens.texts(40, seed=9)}, "training texts"),
        ({"texts": TEXTS[::-1]}, "training texts"),
        ({"validation": OTHER_HELD_OUT}, "validation texts"),
        ({"over": "inputs"}, "over"),
        ({"over": [(0, 0), (1, 1)]}, "over"),
        ({"sites": [1]}, "rows"),
        ({"lr": 0.1}, "lr"),
        ({"margin": 0.1}, "margin"),
        ({"seed": 1}, "seed"),
    ],
)
def test_what_another_fit_began_is_not_taken_up(change, named, tmp_path):
    fit(tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    given = {**change, "model": change["model"]()} if "model" in change else change
    with pytest.raises(TrainingError, match=f"was written with {named} .*, this run has .*; go on with the"):
        fit(tmp_path, **given)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_the_split_and_the_lens_to_start_from_count_too(tmp_path):
    held = {"held_out": TEXTS[:3], "validation": TEXTS[3:6]}
    made = fit(tmp_path / "a", **held)
    with pytest.raises(TrainingError, match="written with held-out texts "):
        fit(tmp_path / "a", **{**held, "held_out": OTHER_HELD_OUT})
    again = DiffMask.fit(made.subject, TEXTS, "states", folder=tmp_path / "b", start=made, **SHORT)
    with pytest.raises(TrainingError, match="written with start .*, this run has "):
        DiffMask.fit(made.subject, TEXTS, "states", folder=tmp_path / "b", start=again, **SHORT)
    with pytest.raises(TrainingError, match="written with start .*, this run has 'none'"):
        DiffMask.fit(made.subject, TEXTS, "states", folder=tmp_path / "b", **SHORT)


def test_a_fit_that_goes_on_does_not_begin_again(tmp_path, monkeypatch):
    """Where it begins is searched with many runs of a language model."""
    first = fit(tmp_path)
    monkeypatch.setattr(lens_source, "begin", None)
    again = fit(tmp_path)
    for name, value in first.probe.state_dict().items():
        assert torch.equal(value, again.probe.state_dict()[name]), name


def test_a_second_fit_in_one_folder_is_refused(tmp_path, monkeypatch):
    run = Training.run

    def meanwhile(self, show_progress=False):
        monkeypatch.setattr(Training, "run", run)
        with pytest.raises(TrainingError, match=f"another fit is writing to {tmp_path}"):
            fit(tmp_path)
        fit(tmp_path / "other")
        run(self, show_progress)

    monkeypatch.setattr(Training, "run", meanwhile)
    fit(tmp_path)
    fit(tmp_path)  # once it has ended there is no lock


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(Training, "run", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(FileError, match="is a file, not a folder"):
        fit(tmp_path / "file" / "lens")


def test_a_lens_fitted_on_two_texts_is_not_ok(tmp_path):
    with pytest.warns(UserWarning, match=r"judged on fewer than 10 held-out texts, which is not enough"):
        lens = fit(texts=["17", "23"])
    assert all(d.divergence <= 0.05 and not d.ok for d in lens.diagnostics)
    lens.save_pretrained(tmp_path)
    assert not any(d.ok for d in DiffMask.from_pretrained(tmp_path, lens.subject).diagnostics)
    assert "judged on fewer than 10 held-out texts" in card(lens)
    held = sevens.texts(2 * FEWEST_HELD_OUT, seed=3)
    assert all(d.ok for d in fit(held_out=held[:10], validation=held[10:]).diagnostics)


class Parity(nn.Module):
    """Whether the number of odd digits is odd: every digit counts, and nothing can go."""

    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(10, 6), nn.Identity()
        with torch.no_grad():
            self.embed.weight[:, 0] = torch.tensor([1.0, -1.0] * 5)

    def forward(self, digits, valid):
        signs = self.body(self.embed(digits))[..., 0]
        return 4 * torch.where(valid, signs, 1.0).prod(1)


def test_a_fit_that_kept_everything_says_that_it_says_nothing():
    with pytest.warns(UserWarning, match="words, embeddings: everything is kept, which says nothing"):
        lens = fit(model=Parity(), steps=2)
    assert all(d.kept > ALL_KEPT for d in lens.diagnostics)
    assert "everything is kept, which says nothing about the model" in card(lens)
    lens.diagnostics = [Diagnostic(0, 0.01, 0.9, 1.0, 0.01, True)]
    assert lens.remarks == []


def killed_fit(folder, seconds):
    """For a process of its own: a fit that dies at some moment."""
    warnings.simplefilter("ignore")
    run = Training.run

    def dying(self, show_progress=False):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        run(self, show_progress)

    Training.run = dying
    fit(folder, **LONG)
    os._exit(0)


LONG = {"steps": 1500, "evaluate_every": 4}


@pytest.mark.slow
def test_a_fit_killed_twenty_times_is_the_same_to_the_bit(tmp_path):
    """Killed at random moments, also while a checkpoint is written."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["test_fit_again", "masklens.diffmask.lens", "sevens"])
    draw, kills = random.Random(0), 0
    while kills < 20:
        process = context.Process(target=killed_fit, args=(tmp_path / "killed", draw.uniform(0.01, 0.2)))
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL, "it ended before it was killed: make it longer"
        kills += 1
    resumed, straight = fit(tmp_path / "killed", **LONG), fit(**LONG)
    for name, value in straight.probe.state_dict().items():
        assert torch.equal(value, resumed.probe.state_dict()[name]), name
    assert straight.diagnostics == resumed.diagnostics and straight.history == resumed.history
    assert not list(tmp_path.rglob("*.part"))
