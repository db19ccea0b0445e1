"""`report`: explanations, and the proof of each, in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .attribution import Attribution
from .errors import FileError
from .evaluation.table import Table
from .evaluation.verifying import Verification, verify
from .files import whole
from .subject import as_subject
from .viz.report import PARTS, Entry, Part, evaluation_parts, report_data, report_html

SEGMENTS = {"QuestionAnswering": ("question", "passage")}
"""what the two texts of a pair are called, by the kind of task"""
Sets = Mapping[str, Sequence[Attribution]]


def report(
    attributions: Sequence[Attribution] | Sets,
    path: str | os.PathLike[str],
    title: str = "masklens report",
    subject: Any = None,
    lenses: Sequence[Any] = (),
    keep: float = 0.5,
    labels: Sequence[str] | None = None,
    evaluation: Table | None = None,
    parts: Sequence[Part] = (),
) -> Path:
    """Write one HTML file to look at explanations in; it opens from disk and needs no network.

        report(explain(subject, texts), "report.html", subject=subject)

    Args:
        attributions: a list, or lists by name (several methods on the same texts stand side by side).
        subject: the model; with it every explanation is verified at every site.
        lenses: the lenses that made attributions of diffmask; they bring what stands for a removed token.
        keep: as in `verify`.
        labels: the right answer of each text.
        evaluation: what `evaluate` found: its curves and its table are shown.
        parts: further charts, tables and word clouds (see `viz.report`).
    """
    path = Path(path)
    if path.suffix != ".html":
        raise FileError(f"cannot write a report to {path}; end the name in .html")
    sets = named(attributions)
    entries = [
        entry for name, chosen in sets.items() for entry in prove(chosen, name, subject, lenses, keep)
    ]
    further = [*(evaluation_parts(evaluation) if evaluation else []), *parts]
    data = report_data(entries, title, labels, further, segment_names(subject))
    with whole(path) as part:
        part.write_text(report_html(data), encoding="utf-8")
    return path


def named(attributions: Sequence[Attribution] | Sets) -> dict[str, Sequence[Attribution]]:
    """Attributions by the name they are shown under: their method, unless the user gives others."""
    if isinstance(attributions, Mapping):
        return dict(attributions)
    sets: dict[str, list[Attribution]] = {}
    for attribution in attributions:
        sets.setdefault(display_name(attribution), []).append(attribution)
    return dict(sets)


def display_name(attribution: Attribution) -> str:
    """The method; for a lens also what its masks are over."""
    said = attribution.settings.get("over")
    return f"{attribution.method} ({said})" if said else attribution.method


def prove(
    attributions: Sequence[Attribution],
    name: str,
    subject: Any = None,
    lenses: Sequence[Any] = (),
    keep: float = 0.5,
) -> Iterator[Entry]:
    """Attributions as the viewer shows them, each with what its verification found at every site."""
    proofs: list[list[Verification]] = [[] for _ in attributions]
    if subject is not None and attributions:
        replace = _replacement(attributions[0], lenses)
        for site in attributions[0].sites:
            for found, proof in zip(
                proofs, verify(subject, attributions, keep, replace, site), strict=True
            ):
                found.append(proof)
    for attribution, found in zip(attributions, proofs, strict=True):
        yield Entry(attribution, name, found)


def _replacement(attribution: Attribution, lenses: Sequence[Any]) -> Any:
    """The lens that made an attribution, for its baseline; else the mask token."""
    for lens in lenses:
        if attribution.method == "diffmask" and attribution.settings.get("over") == lens.over:
            return lens
    return "mask"


def segment_names(subject: Any) -> Sequence[str]:
    """What the two texts of a pair are called for this model."""
    return PARTS if subject is None else SEGMENTS.get(type(as_subject(subject).task).__name__, PARTS)
