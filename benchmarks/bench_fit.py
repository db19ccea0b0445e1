"""Fitting a lens by the default recipe and by the published one, on the toy task.

The published recipe has as long as the default one takes, and then six times as long. Both are given the same
frozen states, which the published code computes anew for every batch.
"""

from __future__ import annotations

import time
import warnings

import torch
from experiments.toy import digits

from benchmarks.timing import table
from masklens.diffmask.lens import DiffMask
from masklens.model.subject import Subject

MARGIN = 0.05
MORE = (1, 6)
"""how many times as long the published recipe has"""
TIMED = 200
"""steps from which its speed is taken"""


def fit(subject: Subject, data: digits.Digits, **how: object) -> tuple[DiffMask, float]:
    """A lens over both sites' states, and the seconds that it took."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a lens is over its margin is what the table says
        lens = DiffMask.fit(subject, data.texts(), "states", MARGIN, **how)  # type: ignore[arg-type]
    return lens, time.perf_counter() - start


def row(name: str, lens: DiffMask, seconds: float) -> list[str]:
    """A row of the table; the hidden states are the last site."""
    found = lens.diagnostics[-1]
    cells = [name, f"{seconds:.1f}", f"{lens.settings.steps:,}"]
    cells += [f"{found.divergence:.4f}", f"{found.kept:.1%}", "yes" if found.ok else "NO"]
    return cells


def main() -> str:
    data = digits.generate(10_000, 0)
    train, test = data.rows(torch.arange(9_000)), data.rows(torch.arange(9_000, 10_000))
    subject = digits.subject_for(digits.train_model(train, test, 0, epochs=20))
    lens, ours = fit(subject, train)
    rows = [row("default", lens, ours)]
    once, many = (fit(subject, train, recipe="published", steps=n * TIMED)[1] for n in (1, 2))
    for times in MORE:
        steps = round(times * ours / (many - once) * TIMED)
        rows.append(row("published", *fit(subject, train, recipe="published", steps=steps)))
    about = f"Toy task, margin {MARGIN} nats; hidden states on held-out texts (query digits are 50% of all)"
    heads = ["recipe", "seconds", "steps", "divergence", "kept", "within the margin"]
    return f"{about}\n\n{table(heads, rows)}"
