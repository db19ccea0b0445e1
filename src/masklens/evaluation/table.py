"""The table that an evaluation returns: a row per method, a column per metric, means with intervals."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..bootstrap import interval
from ..files import whole
from ..records.layers import row_name


@dataclass(frozen=True)
class Cell:
    """A mean over texts."""

    value: float
    low: float | None = None
    high: float | None = None
    """`low` to `high` is the 95% bootstrap interval over texts"""
    spread: float | None = None
    """standard deviation over random draws"""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        text = f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return text if self.spread is None else f"{text} ±{self.spread:.3f}"


def cell(values: np.ndarray, seed: int = 0) -> Cell:
    """Mean and bootstrap interval of one value per text; texts without a value (nan) are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Cell(float("nan"))
    low, high = interval(values, seed=seed)
    return Cell(float(values.mean()), low, high)


def cell_of_draws(values: np.ndarray, seed: int = 0) -> Cell:
    """Mean and interval for several random draws, (draws, texts), with the spread of the draws' means."""
    known = np.ma.masked_invalid(values)
    means = known.mean(axis=1).compressed()
    one = cell(known.mean(axis=0).filled(np.nan), seed)
    return Cell(one.value, one.low, one.high, float(means.std(ddof=1)) if len(means) > 1 else None)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows by name, or NAME@SITE where there are several sites; columns by metric.

    `table["gradient"]["hiding"].value` is one figure.
    """

    rows: Mapping[str, Mapping[str, Cell]]
    better: Mapping[str, str] = field(default_factory=dict)
    """for each metric, "higher" or "lower" """
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    """the seconds that each method took for all texts, if known"""
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """for each row and game, the accuracy at 0, 10, ..., 100%"""
    hits: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """for each row and game, (texts, 11): how often the model was right about each text. Their mean over
    texts is the curve"""
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
        values = {row: cells[metric].value for row, cells in self.rows.items() if metric in cells}
        known = [row for row, value in values.items() if not math.isnan(value)]
        return max(known, key=lambda row: sign * values[row])

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

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Fit the terminal: columns that do not fit go into further tables below."""
        from rich.text import Text

        columns = list(self._columns())
        while columns:
            fit = len(columns)
            while fit > 1 and self._width(console, columns[:fit]) > options.max_width:
                fit -= 1
            yield self._part(columns[:fit])
            yield ""
            columns = columns[fit:]
        yield from map(Text, self.notes)  # as plain text: a note may quote user input

    def _columns(self) -> Iterator[tuple[str, list[str]]]:
        """The heading and the cells of each metric, and of the seconds where they are known."""
        arrows = {"higher": " ↑", "lower": " ↓"}
        for name in self.metrics:
            cells = [str(row[name]) if name in row else "" for row in self.rows.values()]
            yield name + arrows.get(self.better.get(name, ""), ""), cells
        seconds = [self.seconds.get(row) for row in self.rows]
        if any(taken is not None for taken in seconds):
            yield "seconds", ["" if taken is None else f"{taken:.2f}" for taken in seconds]

    def _part(self, columns: Sequence[tuple[str, list[str]]]) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        headings = (heading for heading, _ in columns)
        made = RichTable(
            "", *headings, box=SIMPLE_HEAD, show_edge=False, collapse_padding=True, pad_edge=False
        )
        for row, *cells in zip(map(row_name, self.rows), *(cells for _, cells in columns), strict=True):
            made.add_row(*map(Text, [row, *cells]))
        return made

    def _width(self, console: Any, columns: Sequence[tuple[str, list[str]]]) -> int:
        return console.measure(self._part(columns), options=console.options.update(width=10_000)).maximum

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return plain_text(self, width=24 + 30 * (len(self.metrics) + 1))


def plain_text(printed: Any, width: int) -> str:
    """What rich prints, without colours."""
    from rich.console import Console

    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(printed, highlight=False)
    return captured.get()


def _plain(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The values for JSON: numbers that are not finite become null."""
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in values.items()
    }
