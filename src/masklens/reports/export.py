"""Attributions as files: data, pictures or a report, chosen by the ending of the name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..attribution import Attribution, save
from ..errors import FileError
from ..files import check_writable, whole
from ..records.generation import Generation
from ..records.generation import save as save_records

DOTS_PER_INCH = 150
TALLEST = 2**16 / DOTS_PER_INCH
"""the largest height of an image that matplotlib can draw, in inches"""
REPORT = ".html"


def check_output(path: Path) -> None:
    """Raise a FileError if attributions cannot be written to this file; to be called before the work."""
    if path.suffix not in (*WRITERS, REPORT):
        known = ", ".join((*WRITERS, REPORT))
        raise FileError(f"cannot write attributions to {path}; end the name in one of {known}")
    check_writable(path)


def write(
    attributions: Sequence[Attribution],
    path: Path,
    subject: Any = None,
    lenses: Sequence[Any] = (),
    guard: float | None = None,
    verify: bool = True,
) -> None:
    """Write the attributions to one file, completely or not at all.

    The subject, the lenses, `guard` and `verify` are those of `report`.
    """
    check_output(path)
    if path.suffix == REPORT:
        from .report import report

        report(attributions, path, subject=subject, lenses=lenses, guard=guard, verify=verify)
    else:
        WRITERS[path.suffix](attributions, path)


def write_answers(made: Sequence[Generation], path: Path) -> None:
    """Write explained answers to one file."""
    check_output(path)
    if path.suffix == REPORT:
        from .report import report

        report(made, path)
    elif path.suffix in (".json", ".parquet"):
        save_records(made, path)
    elif len(made) > 1:
        raise FileError(f"{path} is one picture for {len(made)} answers; give one prompt, or end in .html")
    else:
        with whole(path) as part:
            made[0].plot().figure.savefig(part, format=path.suffix[1:], dpi=DOTS_PER_INCH)


def _draw(attributions: Sequence[Attribution], path: Path) -> None:
    """Draw the heat maps below one another."""
    from .heatmap import figure, figure_height

    if figure_height(attributions) >= TALLEST:
        raise FileError(
            f"{len(attributions)} attributions are too many for one picture ({path}); "
            "give fewer texts, or a name that ends in .html"
        )
    with whole(path) as part:
        figure(attributions).savefig(part, format=path.suffix[1:], dpi=DOTS_PER_INCH)


WRITERS: dict[str, Callable[[Sequence[Attribution], Path], object]] = {
    ".json": save,
    ".parquet": save,
    ".png": _draw,
    ".svg": _draw,
}
