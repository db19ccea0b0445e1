"""`python -m experiments emergence`: lenses on planted models, compared with what each layer can know.

For every task and seed: the truth (`truth.supervised`), a lens with the defaults, a lens with the published
recipe, and with `alone` a lens for each single site with the same number of steps. All are measured on texts
that were not used for training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from masklens import DiffMask, Subject
from masklens.diffmask.trainer import Settings
from masklens.errors import MethodError

from ..parts import Found, Parts, check_out
from ..results import command_line
from . import report as emergence_report
from .planted import TASKS, Examples, build, generate
from .truth import AtSite, measure, supervised

MARGIN = 0.1
TRAIN, HELD = 4000, 500
"""the number of texts to fit on, and of texts to calibrate on (and as many to measure with)"""


def run(
    out: str | Path,
    task: Sequence[str] = tuple(TASKS),
    seeds: Sequence[int] = (0, 1, 2),
    alone: bool = False,
    steps: int | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Do the missing parts, one task and seed after the other, and write the results of all finished
    parts."""
    out = Path(out)
    check_out(out)
    if unknown := [one for one in task if one not in TASKS]:
        raise MethodError(f"no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    torch.set_num_threads(1)  # on models this small, more threads wait for each other
    name = "planted" + ("" if steps is None else f"-steps{steps}")
    parts = Parts(out / "parts" / name, {"texts": TRAIN, "held_out": HELD, "steps": steps})
    for one in (PlantedRun(which, seed, steps) for which in task for seed in seeds):
        parts.do(one.name, one.measure, tell)
        if alone:
            parts.do(f"alone/{one.name}", one.measure_alone, tell)
    settings = asdict(Settings(margin=MARGIN)) | ({} if steps is None else {"steps": steps})
    about = {"settings": settings, "texts": TRAIN, "held_out": HELD}
    emergence_report.write(out, parts, about, command_line("emergence", out="DIR", steps=steps))


@dataclass
class PlantedRun:
    """One planted model and its texts."""

    task: str
    seed: int
    steps: int | None

    @property
    def name(self) -> str:
        return f"{self.task}-{self.seed}"

    @cached_property
    def built(self) -> tuple[Subject, float]:
        """The model, and its accuracy on held-out texts."""
        return build(self.task, self.seed)

    @cached_property
    def texts(self) -> tuple[Examples, Examples, Examples]:
        """The texts to fit on, to calibrate on, and to measure with."""
        counts = enumerate((TRAIN, HELD, HELD), 11)
        train, validation, test = (generate(self.task, count, 3 * self.seed + k) for k, count in counts)
        return train, validation, test

    def measure(self) -> Found:
        """For each site, the truth and what the lenses of both recipes drop."""
        subject, accuracy = self.built
        train, validation, test = self.texts
        truth = measure(supervised(subject, train, validation, MARGIN, self.seed), subject, test)
        rows = {"truth": truth} | {recipe: self._lens(recipe=recipe) for recipe in ("default", "published")}
        return {
            "accuracy": accuracy,
            "forms": {name: [row._asdict() for row in some] for name, some in rows.items()},
        }

    def measure_alone(self) -> Found:
        """What a lens for each single site drops there."""
        rows = [self._lens(sites=[site])[0] for site in self.built[0].sites]
        return {"forms": {"alone": [row._asdict() for row in rows]}}

    def _lens(self, **how: Any) -> list[AtSite]:
        train, validation, test = self.texts
        how |= {} if self.steps is None else {"steps": self.steps}
        how |= {"held_out": test.texts, "validation": validation.texts}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sites over their margin are in the table
            lens = DiffMask.fit(self.built[0], train.texts, "inputs", MARGIN, self.seed, **how)
        return measure(lens.probe, self.built[0], test)
