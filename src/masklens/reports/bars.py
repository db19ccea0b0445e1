"""Horizontal bars with intervals, one per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis import Group

BLUE = "#2166ac"


def draw(groups: Sequence[Group], ax: Any = None, title: str | None = None, axis: str = "mean") -> Any:
    """Draw one bar per group, with a whisker for the interval and the number of tokens beside the name."""
    from matplotlib.figure import Figure

    from .fonts import drawable, families

    if ax is None:
        figure = Figure(figsize=(6, 0.8 + 0.3 * len(groups)), layout="constrained")
        ax = figure.subplots()
    means = [g.mean for g in groups]
    errors = [[max(0.0, g.mean - g.low) for g in groups], [max(0.0, g.high - g.mean) for g in groups]]
    places = range(len(groups))
    ax.barh(places, means, xerr=errors, color=BLUE, height=0.7, error_kw={"lw": 1, "ecolor": "#333333"})
    names = [f"{drawable(g.name)}  ({g.count:,})" for g in groups]
    ax.set_yticks(places, names, fontsize=9, parse_math=False, fontfamily=families())
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.set_xlabel(axis)
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(drawable(title), fontsize=10, loc="left", parse_math=False, fontfamily=families())
    return ax.figure
