"""Attributions as plain data for JSON, and as files chosen by their ending."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .attribution import Attribution, save
from .errors import FileError

DATA = (".json", ".parquet")
PICTURES = (".png", ".svg")


def record(attribution: Attribution) -> dict[str, Any]:
    """The attribution as lists, strings and numbers; scores that are not finite become None."""
    scores = attribution.scores.astype(object)
    scores[~np.isfinite(attribution.scores)] = None
    return {**asdict(attribution), "scores": scores.tolist(), "settings": dict(attribution.settings)}


def check_ending(path: Path) -> None:
    """Raise a FileError if attributions cannot be written to a file of this name."""
    if path.suffix not in DATA + PICTURES:
        raise FileError(
            f"cannot write attributions to {path}; end the name in one of {', '.join(DATA + PICTURES)}"
        )


def write(attributions: Sequence[Attribution], path: Path) -> None:
    """Write the attributions to one file; it appears whole or not at all."""
    check_ending(path)
    if path.suffix in DATA:
        save(attributions, path)
    else:
        _draw(attributions, path)


def _draw(attributions: Sequence[Attribution], path: Path) -> None:
    """Draw the heat maps below one another."""
    from matplotlib.figure import Figure

    heights = [1.5 + 0.3 * len(a.sites) for a in attributions]
    width = max(4.0, 0.5 * max(len(a.tokens) for a in attributions))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    axes = figure.subplots(len(attributions), squeeze=False, height_ratios=heights)[:, 0]
    for attribution, ax in zip(attributions, axes, strict=True):
        attribution.plot(ax=ax)
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(part, format=path.suffix[1:], dpi=150)
    os.replace(part, path)
