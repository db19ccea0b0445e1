"""`python -m experiments lenses`: lenses that `DiffMask.fit` makes with its defaults, on six classifiers.

    run(model_dir, data, out)                                       # everything that is missing
    run(model_dir, data, out, model="minilm-sst2", part=["alone"])

For each model: lenses over inputs and over states with two seeds, and the difference between the seeds. For
minilm also lenses over inputs for single sites. Every figure is for test texts that were used neither for
fitting nor for calibration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from masklens.diffmask.lens import DiffMask

from ..classifier import MARGIN, ClassifierRun
from ..model_run import OVERS, checkpoints_in, default_device
from ..parts import Found, asked_for, check_out, check_wanted, only_one
from ..results import command_line
from . import report as lenses_report

MODELS = tuple(f"{family}-{task}" for family in ("minilm", "mpnet") for task in ("sst2", "sst5", "agnews"))
SEEDS = 2
ALONE = "minilm"
"""the family for which lenses are also fitted for single sites"""
MOST_SITES = 8
"""sites of that family"""


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str | None = None,
    part: Sequence[str] | None = None,
    device: str | None = None,
    limit: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is missing and write the results.

    Args:
        model_dir: holds the checkpoints, such as minilm-sst2.
        model: only this one; by default every one of MODELS that is there.
        part: only these, such as "lens/inputs/0", or the beginning of their names, such as "alone".
        limit: use at most so many texts of each set, in batches of this size.
        steps: of fitting a lens.
        seed: of the first lens; the second has the next one.
    """
    model_dir, out = Path(model_dir), Path(out)
    check_out(out)
    check_wanted(part, parts_for(f"{ALONE}-"))
    given = default_device(device), None, limit, steps, seed
    names = [model] if model else checkpoints_in(model_dir, MODELS)
    runs = {
        name: LensRun(model_dir, Path(data), out, name, *given) for name in dict.fromkeys((*MODELS, *names))
    }
    for name in names:
        for one in asked_for(parts_for(name), part):
            runs[name].do(one, tell)
    with only_one(out / "parts" / ".results.lock"):
        found = {name: done for name, one in runs.items() if (done := one.parts.done(parts_for(name)))}
        options = {
            "model_dir": "DIR",
            "data": "DIR",
            "out": "DIR",
            "limit": limit,
            "steps": steps,
            "seed": seed,
        }
        lenses_report.write(out, found, MARGIN, command_line("lenses", **options))


def parts_for(model: str) -> list[str]:
    """Every part of a model, in order."""
    names = [f"lens/{over}/{number}" for over in OVERS for number in range(SEEDS)]
    names += [f"seeds/{over}" for over in OVERS]
    return names + [f"alone/{site}" for site in range(MOST_SITES) if model.startswith(f"{ALONE}-")]


class LensRun(ClassifierRun):
    """A classifier and what its lenses do."""

    def do(self, name: str, tell: Callable[[str], None]) -> None:
        kind, _, rest = name.partition("/")
        work = {"lens": self.fit_lens, "seeds": self._seeds, "alone": self._alone}[kind]
        self.parts.do(name, lambda: work(rest), tell)

    def _seeds(self, over: str) -> Found:
        """For each site, the mean absolute difference between the keep probabilities of two lenses."""
        texts = self.lens_texts.test
        sets = [self.lens(over, k).explain(texts, batch_size=self.batch_size) for k in range(SEEDS)]
        apart = [np.abs(a.scores - b.scores) for a, b in zip(*sets, strict=True)]  # (sites, tokens) each
        return {"difference": np.concatenate(apart, axis=1).mean(1).tolist()}

    def _alone(self, site: str) -> Found:
        """A lens over inputs for a single site, with as many steps as a lens for all sites."""
        train, validation, test = self.lens_texts
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is over the margin is in the table
            lens = DiffMask.fit(
                self.subject,
                train,
                "inputs",
                MARGIN,
                self.seed,
                [int(site)],
                test,
                validation,
                **self.fit_settings,
            )
        return {"diagnostics": [d._asdict() for d in lens.diagnostics], "lens": asdict(lens.settings)}
