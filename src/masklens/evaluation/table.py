"""The one table that an evaluation ends in: methods down, metrics across, every number with its interval."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..files import whole


@dataclass(frozen=True)
class Cell:
    """A mean over texts."""

    value: float
    low: float | None = None
    high: float | None = None
    """95% bootstrap interval over texts"""
    spread: float | None = None
    """standard deviation over random draws"""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        text = f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return text if self.spread is None else f"{text} ±{self.spread:.3f}"


def cell(values: np.ndarray, draws: int = 1000, seed: int = 0) -> Cell:
    """Mean and bootstrap interval of one value a text; texts without a value (nan) are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Cell(float("nan"))
    low, high = interval(values, draws, seed)
    return Cell(float(values.mean()), low, high)


def cell_of_draws(values: np.ndarray, draws: int = 1000, seed: int = 0) -> Cell:
    """The same for several random draws, (draws, texts), with the spread of the draws' means."""
    known = np.ma.masked_invalid(values)
    means = known.mean(axis=1).compressed()
    one = cell(known.mean(axis=0).filled(np.nan), draws, seed)
    return Cell(one.value, one.low, one.high, float(means.std(ddof=1)) if len(means) > 1 else None)


def interval(values: np.ndarray, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean: percentiles over samples of the texts, drawn with replacement."""
    generator = np.random.default_rng(seed)
    count = len(values)
    means = [generator.choice(values, count).mean() for _ in range(draws)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows by name, or NAME@SITE where there are several sites; columns by metric.

    table["gradient"]["hiding"].value; print(table); table.to_json("x.json"); table.to_pandas()
    """

    rows: Mapping[str, Mapping[str, Cell]]
    better: Mapping[str, str] = field(default_factory=dict)
    """for each metric, "higher" or "lower" """
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    """what each method took for all texts, where it is known"""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """for each row and game, the accuracy at 0, 10, ..., 100%"""
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, row: str) -> Mapping[str, Cell]:
        return self.rows[row]

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for cells in self.rows.values() for name in cells))

    def best(self, metric: str) -> str:
        """The row with the best value."""
        sign = -1 if self.better.get(metric) == "lower" else 1
        known = [
            row
            for row in self.rows
            if metric in self.rows[row] and not math.isnan(self.rows[row][metric].value)
        ]
        return max(known, key=lambda row: sign * self.rows[row][metric].value)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: {"rows": {row: {metric: {value, low, high, spread}, "seconds": ...}}, ...}."""
        rows = {
            row: {name: _plain(asdict(one)) for name, one in cells.items()}
            | {"seconds": self.seconds.get(row)}
            for row, cells in self.rows.items()
        }
        return {
            "rows": rows,
            "better": dict(self.better),
            "curves": {
                row: {g: list(map(float, c)) for g, c in games.items()} for row, games in self.curves.items()
            },
            "notes": list(self.notes),
            "settings": dict(self.settings),
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as JSON text, written to a file if one is named."""
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            with whole(Path(path)) as part:
                part.write_text(text, encoding="utf-8")
        return text

    def to_pandas(self) -> Any:
        """A DataFrame of the values, with a column of seconds."""
        import pandas

        values = {row: {name: one.value for name, one in cells.items()} for row, cells in self.rows.items()}
        frame = pandas.DataFrame.from_dict(values, orient="index", columns=None)
        return frame.assign(seconds=[self.seconds.get(row) for row in frame.index])

    def __rich__(self) -> Any:
        from rich.table import Table as RichTable

        arrows = {"higher": " ↑", "lower": " ↓"}
        made = RichTable(
            "", *(name + arrows.get(self.better.get(name, ""), "") for name in self.metrics), "seconds"
        )
        for row, cells in self.rows.items():
            taken = self.seconds.get(row)
            shown = [str(cells[name]) if name in cells else "" for name in self.metrics]
            made.add_row(row, *shown, "" if taken is None else f"{taken:.2f}")
        made.caption = "\n".join(self.notes) or None
        return made

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=24 + 30 * (len(self.metrics) + 1), color_system=None, file=io.StringIO())
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def _plain(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Numbers that JSON knows: those that are not finite become null."""
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in values.items()
    }
