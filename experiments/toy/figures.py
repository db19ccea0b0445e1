"""Figures 3 and 11 of DiffMask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from masklens.model.subject import Subject

from ..results import can_draw, save_figure
from .digits import EXAMPLE, HIDDEN, Digits, encode

BLUE, ORANGE, GREY = "#2166ac", "#d95f02", "#999999"


def draw(out: Path, subject: Subject, scores: Mapping[str, np.ndarray], test: Digits) -> None:
    """Write figure3.png and figure11.png."""
    if can_draw():
        save_figure(out, "figure3", figure_3(scores))
        save_figure(out, "figure11", figure_11(subject, test))


def figure_3(scores: Mapping[str, np.ndarray]) -> Any:
    """Bars of each method's attribution over the example's digits."""
    from matplotlib.figure import Figure

    query, digits = EXAMPLE[0].split(), EXAMPLE[1].split()
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    figure.suptitle(
        f"Are there more {query[0]}s than {query[1]}s?   Input attribution, normalised to sum to 1"
    )
    for ax, (name, values) in zip(figure.subplots(2, 3, sharey=True).flat, scores.items(), strict=True):
        colours = [BLUE if digit in query else GREY for digit in digits]
        ax.bar(range(len(digits)), values, color=colours)
        ax.set_title(name.replace("_", " "), fontsize=10)
        ax.set_xticks(range(len(digits)), digits)
        ax.set_ylim(0, 1)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def figure_11(subject: Subject, test: Digits) -> Any:
    """The 2-d states: of the first query digit, of the second, of the others."""
    from matplotlib.figure import Figure

    states = subject.states(encode(test.texts()), [HIDDEN]).states[HIDDEN].numpy()
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    ax = figure.subplots()
    valid, query = test.valid.numpy(), test.query.numpy()
    digits = test.digits.numpy()
    first, second = (valid & (digits == query[:, [i]]) for i in (0, 1))
    kinds = {"other": (valid & ~first & ~second, GREY), "n": (first, BLUE), "m": (second, ORANGE)}
    for name, (where, colour) in kinds.items():
        x, y = states[where].T
        ax.scatter(x, y, s=5, c=colour, label=name, alpha=0.5, linewidths=0)
    ax.legend(title="state of a digit that is", markerscale=3, frameon=False)
    ax.set_title("Hidden states of the toy model")
    ax.set_xlabel("dimension 1")
    ax.set_ylabel("dimension 2")
    return figure
