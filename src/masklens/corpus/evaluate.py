"""`evaluate` for corpus runs: the same measures over Parquet shards, with a few texts in memory at a time.

Means are exact. Intervals come from the Poisson bootstrap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..attribution import Attribution
from ..bootstrap import RunningMean, parts, sample_weights
from ..errors import MethodError
from ..evaluation.evaluate import (
    DEFAULT,
    METRICS,
    Measured,
    measure,
    measured_values,
    settings_of,
    shared_targets,
)
from ..evaluation.faithfulness import Game
from ..evaluation.masking import Views
from ..evaluation.robustness import warn_of_problems
from ..evaluation.table import Cell, Table
from ..model.subject import as_subject
from .shards import Explained, read_back


class RunningCell:
    """One cell of the table: the running mean of a measure, with one value per text and random draw."""

    def __init__(self, draws: int = 1) -> None:
        self.mean = RunningMean()
        self.curve: np.ndarray | float = 0.0
        self.texts = 0
        self.totals, self.counts = np.zeros(draws), np.zeros(draws)

    def add(self, found: Sequence[Measured], weights: np.ndarray) -> None:
        """Add the values of some texts, one result for each random draw."""
        values = np.ma.masked_invalid(np.stack([measured_values(one) for one in found]))  # (draws, texts)
        found_for = values.count(axis=0) > 0  # texts without a value are left out
        self.mean.add(values.mean(axis=0).filled(0.0), found_for.astype(float), weights)
        self.totals += values.sum(axis=1).filled(0.0)
        self.counts += values.count(axis=1)
        games = [one.hits.sum(0) for one in found if isinstance(one, Game)]
        if games:
            self.curve = self.curve + np.mean(games, axis=0)
            self.texts += values.shape[1]

    def cell(self) -> Cell:
        if not self.mean.count:
            return Cell(float("nan"))
        means = self.totals[self.counts > 0] / self.counts[self.counts > 0]
        spread = float(means.std(ddof=1)) if len(means) > 1 else None
        return Cell(self.mean.value, *self.mean.bounds(), spread)

    def accuracy(self) -> list[float] | None:
        """The accuracy curve, if the measure is a game."""
        return (np.asarray(self.curve) / self.texts).tolist() if self.texts else None


def evaluate_corpora(
    subject: Any,
    runs: Mapping[str, str],
    metrics: Sequence[str] | None = None,
    random_draws: int = 20,
    replace: Any = "mask",
    seed: int = 0,
    limit: int | None = None,
    normalised: bool = False,
) -> Table:
    """Measure corpus runs over the same input, beside random orders, in one table.

        evaluate_corpora(subject, {"gradient": "out/gradient", "lens": "out/lens"}, metrics=["revealing"])

    Args:
        runs: the folder or URL of each run. A row that one run rejected is left out of all.
        metrics: names from METRICS.
        limit: the most rows to measure.

    If the runs have labels (`--label-column`), accuracy is measured against these. The other arguments are
    those of `evaluate`.
    """
    names = _check(metrics, runs)
    subject = as_subject(subject)
    columns: dict[str, dict[str, RunningCell]] = {}
    notes: list[str] = []
    count, labelled = 0, False
    for number, (sets, labels) in enumerate(_parts(runs, limit)):
        texts = [a.text for a in next(iter(sets.values()))]
        views = Views(subject, texts, labels, shared_targets(sets), how=replace)
        weights = sample_weights(seed, number, len(texts))
        for row, found in measure(views, sets, names, random_draws, seed, normalised):
            draws = random_draws if row == "random" else 1
            here = columns.setdefault(row, {name: RunningCell(draws) for name in names})
            for name in names:
                here[name].add(found[name], weights)
        count, labelled = count + len(texts), labelled or labels is not None
        if number == 0:
            notes = [note for name, some in sets.items() for note in warn_of_problems(name, some)]
    if not count:
        raise MethodError("the runs have no row in common; evaluate runs over the same input")
    settings = settings_of(count, labelled, replace, random_draws, seed, normalised)
    return _table(columns, names, notes, settings)


def _check(metrics: Sequence[str] | None, runs: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(metrics) if metrics is not None else DEFAULT
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise MethodError(
            f"{unknown[0]!r} cannot be measured over a corpus run; there are {', '.join(METRICS)}"
        )
    if not runs:
        raise MethodError("nothing to evaluate; give {name: folder of a corpus run}")
    return names


def _parts(
    runs: Mapping[str, str], limit: int | None
) -> Iterator[tuple[dict[str, list[Attribution]], list[Any] | None]]:
    """The rows that all runs have, in parts: attributions by run, and the labels if all rows have one."""
    for some in parts(islice(common([read_back(url) for url in runs.values()]), limit)):
        sets = {name: [row[i].attribution for row in some] for i, name in enumerate(runs)}
        labels = [row[0].label for row in some]
        known = all(label is not None for label in labels)
        yield sets, [_label(label) for label in labels] if known else None


def _label(label: str | None) -> int | str | None:
    """The label as a class id if it is a whole number, else as a name."""
    return int(label) if label is not None and label.isdecimal() and len(label) < 10 else label


def common(runs: Sequence[Iterator[Explained]]) -> Iterator[list[Explained]]:
    """The rows of several runs side by side, in their common order. A row that one run lacks is skipped."""
    heads = [next(run, None) for run in runs]
    while all(head is not None for head in heads):
        places = [head.place for head in heads if head is not None]
        last = max(places)
        if min(places) == last:
            yield [head for head in heads if head is not None]
            heads = [next(run, None) for run in runs]
        else:
            behind = [place < last for place in places]
            heads = [next(r, None) if b else h for r, b, h in zip(runs, behind, heads, strict=True)]


def _table(
    columns: Mapping[str, Mapping[str, RunningCell]],
    names: Sequence[str],
    notes: list[str],
    settings: dict[str, Any],
) -> Table:
    curves = {
        row: {name: curve for name, one in some.items() if (curve := one.accuracy()) is not None}
        for row, some in columns.items()
    }
    return Table(
        rows={row: {name: one.cell() for name, one in some.items()} for row, some in columns.items()},
        better={name: METRICS[name].better for name in names},
        curves=curves,
        notes=notes,
        settings=settings,
    )
