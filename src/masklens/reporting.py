"""`report`: explanations, and the proof of each, in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .attribution import Attribution, Text
from .errors import FileError, MethodError
from .evaluation.answers import gold_answers
from .evaluation.table import Table
from .evaluation.verifying import Verification, verify
from .explaining import explain
from .files import whole
from .methods import METHODS, Method, find, load_all
from .overview import overview
from .subject import Subject
from .texts import read_labels
from .token_tasks import QuestionAnswering
from .viz.knowledge import knowledge_chart
from .viz.report import Entry, Part, evaluation_parts, report_data, report_html

COMMON = ("integrated_gradients", "decoded_gradcam", "gradcam", "grad_x_input", "attention", "occlusion")
"""methods that are offered first"""
Sets = Mapping[str, Sequence[Attribution]]


@dataclass(frozen=True)
class Way:
    """One thing that a user can choose: a method, or a lens."""

    method: str
    summary: str
    cost: str
    options: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False
    """whether it is chosen at first"""

    @property
    def lenses(self) -> list[Any]:
        return [self.options["lens"]] if "lens" in self.options else []


def ways(lenses: Sequence[Any] = (), lm_head: Any = None) -> dict[str, Way]:
    """What can be chosen, by name: the lenses first, then every method that has what it needs."""
    load_all()
    found = {}
    for lens in lenses:
        method = METHODS["diffmask"]
        name = f"diffmask ({lens.over})" if isinstance(lens.over, str) else "diffmask"
        found[name] = Way("diffmask", method.summary, "1.2", {"lens": lens}, True)
    first = [METHODS[name] for name in COMMON]
    for method in [*first, *METHODS.values()]:
        if method.name in found or not _offered(method, lm_head):
            continue
        options = {"lm_head": lm_head} if method.name == "decoded_gradcam" else {}
        chosen = method.name in COMMON[:2]
        found[method.name] = Way(method.name, method.summary, method.cost, options, chosen)
    return found


def _offered(method: Method, lm_head: Any) -> bool:
    """Whether a method has what it needs; other libraries' settings of a method are not offered."""
    if method.function.__module__.endswith("presets"):
        return False
    return method.name != "diffmask" and (method.name != "decoded_gradcam" or lm_head is not None)


def explain_ways(
    subject: Subject, texts: Sequence[Text], chosen: Mapping[str, Way], **common: Any
) -> dict[str, Sequence[Attribution]]:
    """Explain the same texts in several ways; the results by the ways' names."""
    return {
        name: explain(subject, texts, way.method, **common, **way.options) for name, way in chosen.items()
    }


def choose(
    names: Sequence[str], default: str, lenses: Sequence[Any] = (), lm_head: Any = None
) -> dict[str, Way]:
    """The ways that methods' names stand for; a lens that was given is always one of them."""
    found = {name: way for name, way in ways(lenses, lm_head).items() if way.lenses}
    for name in [find(name).name for name in names or ([] if lenses else [default])]:
        if name == "diffmask" and lenses:
            continue
        options = {"lm_head": lm_head} if name == "decoded_gradcam" and lm_head is not None else {}
        found[name] = Way(name, find(name).summary, find(name).cost, options)
    if lm_head is not None and "decoded_gradcam" not in found:
        raise MethodError("--lm-head is for decoded_gradcam; add --method decoded_gradcam or leave it out")
    return found


def holds_attributions(path: str) -> bool:
    """Whether a file has attributions in it, not texts."""
    if path.endswith(".json"):
        return True
    if not path.endswith(".parquet") or not Path(path).exists():
        return False
    import pyarrow.parquet as pq

    return {"tokens", "scores"} <= set(pq.read_schema(path).names)


def first_texts(attributions: Sequence[Attribution], limit: int | None) -> list[Attribution]:
    """The attributions of the first texts, at most `limit` of them."""
    wanted = set(list(dict.fromkeys(a.text for a in attributions))[:limit])
    return [a for a in attributions if a.text in wanted]


def read_answers(
    pattern: str, column: str, limit: int | None, subject: Subject | None
) -> list[str | list[str]]:
    """The right answers in a file as `report` takes them: names, and lists where questions are answered."""
    labels = read_labels(pattern, column, limit)
    asked = subject is not None and isinstance(subject.task, QuestionAnswering)
    several = [asked or isinstance(label, list | dict) for label in labels]
    return [gold_answers(label) if many else str(label) for label, many in zip(labels, several, strict=True)]


def report(
    attributions: Sequence[Attribution] | Sets,
    path: str | os.PathLike[str],
    title: str = "masklens report",
    subject: Any = None,
    lenses: Sequence[Any] = (),
    keep: float = 0.5,
    labels: Sequence[str | Sequence[str]] | None = None,
    evaluation: Table | None = None,
    parts: Sequence[Part] = (),
    parts_of_speech: bool = False,
    guard: float | None = None,
) -> Path:
    """Write one HTML file to look at explanations in; it opens from disk and needs no network.

        report(explain(subject, texts), "report.html", subject=subject)

    Args:
        attributions: a list, or lists by name (several methods on the same texts stand side by side).
        subject: the model; with it every explanation is verified at every site.
        lenses: the lenses that made attributions of diffmask; they bring what stands for a removed token.
        keep: as in `verify`.
        labels: the right answer of each text; a list where several answers to a question are right.
        evaluation: what `evaluate` found: its curves and its table are shown.
        parts: further charts, tables and word clouds (see `viz.report`).
        parts_of_speech: add tables of scores by part of speech (English; needs spaCy).
        guard: as in `verify`.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise FileError(f"cannot write a report to {path}; end the name in .html")
    sets = named(attributions)
    entries = [
        entry for name, chosen in sets.items() for entry in prove(chosen, name, subject, lenses, keep, guard)
    ]
    further = [
        *knowledge_chart(lenses),
        *(evaluation_parts(evaluation) if evaluation else []),
        *overview(sets, parts_of_speech),
        *parts,
    ]
    data = report_data(entries, title, labels, further)
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
    guard: float | None = None,
) -> Iterator[Entry]:
    """Attributions as the viewer shows them, each with what its verification found at every site."""
    proofs: list[list[Verification]] = [[] for _ in attributions]
    if subject is not None and attributions:
        replace = _replacement(attributions[0], lenses)
        for site in attributions[0].sites:
            there = verify(subject, attributions, keep, replace, site, guard=guard)
            for found, proof in zip(proofs, there, strict=True):
                found.append(proof)
    for attribution, found in zip(attributions, proofs, strict=True):
        yield Entry(attribution, name, found)


def _replacement(attribution: Attribution, lenses: Sequence[Any]) -> Any:
    """The lens that made an attribution, for its baseline; else the mask token."""
    for lens in lenses:
        if attribution.method == "diffmask" and attribution.settings.get("over") == lens.over:
            return lens
    return "mask"
