"""`python -m experiments toy`: Table 1, Figure 3 and Figure 11 of DiffMask, where the right answer is known.

The hidden state of a digit says whether the query asks for it, and nothing is counted before the GRU. So the
prediction must be attributed evenly to all hidden states of query digits (section 3.1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Over
from masklens.model.subject import Subject

from ..parts import Found, Parts, check_out
from ..results import command_line
from . import report as toy_report
from .digits import (
    EMBEDDINGS,
    EXAMPLE,
    HIDDEN,
    DigitCounter,
    Digits,
    accuracy,
    encode,
    generate,
    subject_for,
    train_model,
)
from .figures import draw
from .truth import MARGIN, OPTIONS, against_truth, explained, figure_3e, keep_of, linear_accuracy, scores_of

INPUT_MARGIN = 0.1
"""of masks over inputs: one baseline must stand for "no query digit" under all 90 queries, which moves some
models' outputs by 0.06 nats however good the masks are"""
OTHERS = ("erasure", "integrated_gradients", "information_bottleneck", "guan")
"""the other methods of Figure 3"""


def run(
    out: str | os.PathLike[str],
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    count: int = 10_000,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Do what is missing and write the results: data, model and lenses of every seed. The model of the first
    one is also explained by every other method.

    Args:
        steps: of fitting a lens, instead of the default.
        count: of examples, a tenth of which are to test on.
    """
    out = Path(out)
    check_out(out)
    name = f"examples{count}" + ("" if steps is None else f"-steps{steps}")
    parts = Parts(out / "parts" / name, {"examples": count, "steps": steps})
    for seed in seeds:
        one = SeedRun(seed, count, steps)
        parts.do(f"seed/{seed}", one.measure, tell)
        if seed == seeds[0]:
            parts.do(f"detail/{seed}", lambda one=one: one.detail(out), tell)  # type: ignore[misc]
    command = command_line("toy", out="DIR", steps=steps) + "".join(f" --seed {seed}" for seed in seeds)
    rows = [parts.read(f"seed/{seed}") for seed in seeds]
    return toy_report.write(out, rows, parts.read(f"detail/{seeds[0]}"), command)


@dataclass
class SeedRun:
    """One seed's data, model and lenses. Lenses are fitted, calibrated and judged on training examples."""

    seed: int
    count: int
    steps: int | None

    @cached_property
    def data(self) -> Digits:
        return generate(self.count, self.seed)

    @property
    def train(self) -> Digits:
        return self.data.rows(torch.arange(self.count * 9 // 10))

    @property
    def test(self) -> Digits:
        return self.data.rows(torch.arange(self.count * 9 // 10, self.count))

    @cached_property
    def model(self) -> DigitCounter:
        return train_model(self.train, self.test, self.seed)

    @cached_property
    def subject(self) -> Subject:
        return subject_for(self.model)

    @cached_property
    def states(self) -> DiffMask:
        """Masks over the 2-d states, decided from themselves (Table 1)."""
        return self._fit("states", MARGIN, [HIDDEN])

    @cached_property
    def inputs(self) -> DiffMask:
        """Masks over the embeddings, decided from the embeddings or from the 2-d states (Figure 3e)."""
        return self._fit([(EMBEDDINGS, EMBEDDINGS), (EMBEDDINGS, HIDDEN)], INPUT_MARGIN)

    def _fit(self, over: Over, margin: float, sites: Sequence[int] | None = None) -> DiffMask:
        given: dict[str, Any] = {} if self.steps is None else {"steps": self.steps}
        return DiffMask.fit(self.subject, self.train.texts(), over, margin, self.seed, sites, **given)

    def measure(self) -> Found:
        """What the model and the lenses do on the test set."""
        lenses = {"states": self.states, "inputs": self.inputs}
        return {
            "seed": self.seed,
            "accuracy": accuracy(self.model, self.test),
            "diffmask": against_truth(keep_of(self.states, self.test)[0], self.test.in_query),
            "figure3e": figure_3e(keep_of(self.inputs, self.test), self.test),
            "diagnostics": {name: [d._asdict() for d in lens.diagnostics] for name, lens in lenses.items()},
            "events": [event for lens in lenses.values() for event in lens.events],
            "lenses": {name: asdict(lens.settings) for name, lens in lenses.items()},
        }

    def detail(self, out: Path) -> Found:
        """The methods beside the lens, against the ground truth; the figures are drawn."""
        found = {name: scores_of(name, self.subject, self.train, self.test, HIDDEN) for name in OPTIONS}
        found["diffmask_per_text"] = found.pop("diffmask")
        draw(out, self.subject, self.example_scores(), self.test)
        return {
            "table1": {name: against_truth(scores, self.test.in_query) for name, scores in found.items()},
            "linear_classifier": linear_accuracy(self.subject, self.train, self.test),
        }

    def example_scores(self) -> dict[str, np.ndarray]:
        """Figure 3: input attributions of the paper's example, each normalised to sum to 1."""
        output, states = self.subject.states(encode([EXAMPLE]))
        label = [int(output > 0)]
        found = {
            name: explained(name, self.subject, self.train, [EXAMPLE], label, EMBEDDINGS)[0].scores[0]
            for name in OTHERS
        }
        keep = self.inputs.keep(states)[:, 0].numpy()
        found |= {"diffmask, from the embeddings": keep[0], "diffmask, from the hidden states": keep[1]}
        return {name: scores / max(scores.sum(), 1e-12) for name, scores in found.items()}
