"""What fitting a lens will take, said before it begins: the texts, whether they are enough, and the time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from ..progress import track
from .trainer import CHECKPOINT, Training, _read_checkpoint

FEW_TEXTS = 500
"""below this a lens is fitted, with a warning"""
TIMED_STEPS = 5
DOUBT = 0.2
"""an estimate of time is at least so unsure, as a share of itself"""
CALIBRATION = 12
"""evaluations that calibrating a lens and judging it at the end cost"""


def describe_texts(train: int, validation: int, held_out: int, steps: int, batch: int) -> str:
    """How many texts there are, what each part is for, and how often training sees them."""
    passes = steps * batch / train
    shown = f"{passes:,.0f}" if passes >= 10 else f"{passes:.2g}"
    return (
        f"{train:,} texts to train on, {validation:,} to validate, {held_out:,} held out to judge the lens; "
        f"{steps:,} steps of {batch} texts: {shown} passes over the training texts"
    )


def judge_texts(train: int) -> str:
    """Whether the training texts are enough."""
    if train >= FEW_TEXTS:
        return f"{train:,} training texts are enough: a lens needs {FEW_TEXTS} or more to be worth its while"
    return f"{train:,} training texts are few: a lens needs {FEW_TEXTS} or more to be worth its while"


def describe_time(training: Training) -> str:
    """How long the rest of the training will take, from steps and an evaluation that are timed here."""
    left = training.settings.steps - training.step
    if left <= 0:
        return "all steps are done already"
    low, high = time_left(training)
    start = f"going on from step {training.step:,}: " if training.step else ""
    return f"{start}about {between(low, high)} on {training.device}, measured over a few steps"


def time_left(training: Training) -> tuple[float, float]:
    """Seconds, at least and at most. Nothing is learned here: the fit is the same with and without."""
    settings, done = training.settings, training.step
    left = settings.steps - done
    count = min(TIMED_STEPS, left)
    places = [done + i * left // count for i in range(count)]  # all over, since batches differ in length
    _try_step(training, places[0])  # the first is slow
    seconds = [_timed(training, partial(_try_step, training, step)) for step in track(places, "timing steps")]
    evaluation = _timed(training, training.objective.judge)
    mean = statistics.mean(seconds)
    error = statistics.stdev(seconds) / math.sqrt(count) if count > 1 else 0.0
    doubt = max(DOUBT * mean, 2 * error)
    judging = evaluation * (left // settings.evaluate_every + CALIBRATION)
    return max(0.0, mean - doubt) * left + judging, (mean + doubt) * left + judging


def saved_step(folder: Path) -> int:
    """How many steps of a fit the checkpoint in a folder holds; 0 if there is none."""
    file = folder / CHECKPOINT
    return _read_checkpoint(file, torch.device("cpu"))[0].step if file.exists() else 0


def _try_step(training: Training, step: int) -> None:
    """The work of a step without its effect."""
    with training.watched():
        training.gradients(step)
    training.optimizer.zero_grad()


def _timed(training: Training, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if training.device.type == "cuda":
        torch.cuda.synchronize(training.device)
    return time.perf_counter() - start


def between(low: float, high: float) -> str:
    """A range of seconds for people: "40 to 55 seconds", "3 to 5 minutes", "2.1 to 2.9 hours"."""
    for size, unit in ((1, "seconds"), (60, "minutes"), (3600, "hours")):  # noqa: B007
        if high < 100 * size:
            break
    first, last = (
        f"{value / size:.1f}" if unit == "hours" else f"{math.ceil(value / size)}" for value in (low, high)
    )
    return f"{last} {unit}" if first == last else f"{first} to {last} {unit}"
