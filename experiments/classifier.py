"""A classifier and its lenses, which every experiment fits in the same way: a lens that one experiment has
fitted serves the others too (`--lens`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from masklens.diffmask.lens import DiffMask

from .labelled import Labelled, read_test, read_train
from .model_run import ModelRun
from .sst.treebank import read_split

MARGIN = 0.1
TRAIN, VALIDATION, TEST = 8000, 500, 600
"""texts to fit on, to calibrate on and to measure with"""


class LensTexts(NamedTuple):
    """Texts to fit on, to calibrate on and to measure with."""

    train: list[str]
    validation: list[str]
    test: list[str]


@dataclass
class ClassifierRun(ModelRun):
    """A classifier and its lenses, kept in OUT/lenses/CHECKPOINT-OVER-seedK."""

    @property
    def task(self) -> str:
        """ "sst2", "sst5" or "agnews" """
        return self.checkpoint.rpartition("-")[2]

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"margin": MARGIN}

    @cached_property
    def lens_texts(self) -> LensTexts:
        """The same ones for every lens of a task, whatever its seed."""
        train, test = self._sets()
        learned = train.sample(TRAIN + VALIDATION, seed=0).texts
        parts = learned[VALIDATION:], learned[:VALIDATION], test.sample(TEST, seed=0).texts
        return LensTexts(*(part[: self.limit] for part in parts))

    def _sets(self) -> tuple[Labelled, Labelled]:
        """The texts to fit on and those to measure with. The published training set of SST-2 has phrases and
        its test set has sentences, so both sets are taken from the sentences of the treebank."""
        if self.task == "agnews":
            return read_train(self.data, self.task), read_test(self.data, self.task)
        return read_split(self.data, self.task, "train"), read_split(self.data, self.task, "test")

    def lens(self, over: str, number: int = 0) -> DiffMask:
        """The lens with the seed `number` above the run's, fitted where it is not there yet."""
        name = f"{self.checkpoint}-{over}-seed{self.seed + number}"
        return self.load_or_fit(name, self.smaller, lambda folder: self._fit(over, number, folder))

    def _fit(self, over: str, number: int, folder: Path) -> None:
        train, validation, test = self.lens_texts
        aside = {"held_out": test, "validation": validation}
        part = self.lens_part(over, number)
        self.fit_into(folder, part, train, over, MARGIN, self.seed + number, **aside)

    def lens_part(self, over: str, number: int) -> str:
        """The name of the part about a fit."""
        return f"lens/{over}/{number}"

    def fit_lens(self, which: str) -> None:
        """Fit a lens such as "inputs/0", which writes its own part."""
        over, number = which.split("/")
        self.lens(over, int(number))
