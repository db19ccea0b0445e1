"""`report`: explanations and their verification in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..attribution import Attribution
from ..errors import FileError
from ..evaluation.table import Table
from ..evaluation.verify import Question, Verifier
from ..files import check_writable, whole
from ..progress import numbered, step
from ..records.generation import Generation
from ..records.verification import Verification
from .document import report_html
from .generation import generation_data, proved, same_answers
from .knowledge import knowledge_chart
from .layers import read_layers
from .overview import overview
from .page import Entry, Panel, evaluation_panels, report_data
from .proofs import by_name, proof_panels

Sets = Mapping[str, Sequence[Attribution]]


def first_texts(attributions: Sequence[Attribution], limit: int | None) -> list[Attribution]:
    """The attributions of the first texts, at most `limit` of them."""
    wanted = set(list(dict.fromkeys(a.text for a in attributions))[:limit])
    return [a for a in attributions if a.text in wanted]


def report(
    attributions: Sequence[Attribution] | Sets | Generation | Sequence[Generation],
    path: str | os.PathLike[str],
    title: str = "masklens report",
    subject: Any = None,
    lenses: Sequence[Any] = (),
    keep: float | None = None,
    labels: Sequence[str | Sequence[str]] | None = None,
    evaluation: Table | None = None,
    panels: Sequence[Panel] = (),
    parts_of_speech: bool = False,
    guard: float | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    verify: bool = True,
) -> Path:
    """Write explanations to one HTML file. It opens from disk and needs no network.

        report(explain(subject, texts), "report.html", subject=subject)

    Args:
        attributions: a list, or lists by name (several methods on the same texts are shown side by side). If
            a text occurs once for each of several targets, the report has a switch between them. A Generation
            or a list of Generations is possible too.
        subject: the model. If it is given, every explanation is verified at every site, and the report says
            what each layer would predict.
        lenses: the lenses that made the attributions of diffmask; their baselines are used to verify these.
        keep: as in `verify`.
        labels: the right answer of each text, or a list of right answers.
        evaluation: the result of `evaluate`, whose curves and table are shown.
        panels: further charts, tables and word clouds (see reports/page.py).
        parts_of_speech: add tables of scores by part of speech (English; needs spaCy).
        guard: as in `verify`.
        columns: further facts of each text by name, such as its source, by which the report can filter.
        verify: whether explanations are verified; without it the subject only says what each layer predicts.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise FileError(f"cannot write a report to {path}; end the name in .html")
    check_writable(path)
    answers = _generations(attributions)
    sets = {} if answers else named(attributions)  # type: ignore[arg-type]
    question = Question(keep=keep, guard=guard)
    judge = subject if verify else None
    entries, random = prove_all(sets, judge, lenses, question)
    further = [
        *proof_panels(by_name(main_targets(entries)), random, evaluation, seconds_a_text(sets)),
        *knowledge_chart(lenses),
        *(evaluation_panels(evaluation) if evaluation else []),
        *overview(main_sets(entries), parts_of_speech),
        *panels,
    ]
    made = (generation_data([proved(one, judge, keep) for one in some]) for some in same_answers(answers))
    layers = {} if subject is None else read_layers(subject, [entry.attribution for entry in entries])
    data = report_data(entries, title, labels, further, answers=made, columns=columns, layers=layers)
    with whole(path) as part:
        part.write_text(report_html(data), encoding="utf-8")
    return path


def _generations(given: Any) -> list[Generation]:
    several = [given] if isinstance(given, Generation) else [] if isinstance(given, Mapping) else given
    return [one for one in several if isinstance(one, Generation)]


def named(attributions: Sequence[Attribution] | Sets) -> dict[str, Sequence[Attribution]]:
    """Attributions by the name under which they are shown: their method, unless the user gives names."""
    if isinstance(attributions, Mapping):
        return dict(attributions)
    sets: dict[str, list[Attribution]] = {}
    for attribution in attributions:
        sets.setdefault(display_name(attribution), []).append(attribution)
    return dict(sets)


def main_targets(entries: Sequence[Entry]) -> list[Entry]:
    """One entry per text and name, for the parts of the report about all texts. If there are several targets,
    it is the entry for the prediction if there is one."""
    main: dict[tuple[Any, str], str] = {}
    for entry in entries:
        a = entry.attribution
        key = (a.text, entry.name)
        main[key] = a.target if a.target == a.prediction else main.get(key, a.target)
    return [
        entry for entry in entries if entry.attribution.target == main[entry.attribution.text, entry.name]
    ]


def main_sets(entries: Sequence[Entry]) -> dict[str, list[Attribution]]:
    """The attributions of `main_targets`, by name."""
    sets: dict[str, list[Attribution]] = {}
    for entry in main_targets(entries):
        sets.setdefault(entry.name, []).append(entry.attribution)
    return sets


def display_name(attribution: Attribution) -> str:
    """The name of the method, for a lens with "(inputs)" or "(states)"."""
    said = attribution.settings.get("over")
    return f"{attribution.method} ({said})" if said else attribution.method


def seconds_a_text(sets: Sets) -> dict[str, float]:
    """The seconds that each method took for a text, if known."""
    taken = {name: (getattr(chosen, "seconds", None), len(chosen)) for name, chosen in sets.items()}
    return {name: seconds / count for name, (seconds, count) in taken.items() if seconds and count}


def prove_all(
    sets: Sets, subject: Any, lenses: Sequence[Any], question: Question
) -> tuple[list[Entry], list[Verification]]:
    """All attributions with their verification, and the verification of a random order of each text.

    Sets of the same texts share their forward passes.
    """
    entries: list[Entry] = []
    last: list[Entry] = []
    verifier: Verifier | None = None
    for number, (name, chosen) in numbered(sets.items(), "method"):
        texts = [a.text for a in chosen]
        if subject is not None and (verifier is None or verifier.texts != texts):
            verifier = Verifier(subject, texts)
        with step(number), step(f"verifying {name}"):
            last = list(prove(chosen, name, verifier, lenses, question))
        entries += last
    if verifier is None or len(verifier.texts) < 2:
        return entries, []
    once = {id(entry) for entry in main_targets(last)}
    tried = zip(last, verifier.random(question), strict=True)
    return entries, [proof for entry, proof in tried if id(entry) in once]


def prove(
    attributions: Sequence[Attribution],
    name: str,
    verifier: Verifier | None = None,
    lenses: Sequence[Any] = (),
    question: Question = Question(),  # noqa: B008 (frozen)
) -> Iterator[Entry]:
    """Attributions as the viewer shows them, each with its verification at every site."""
    sites = attributions[0].sites if verifier is not None and attributions else ()
    replace = _replacement(attributions[0], lenses) if sites else None
    proofs = verifier.at_sites(attributions, sites, replace, question) if verifier and sites else []
    for i, attribution in enumerate(attributions):
        yield Entry(attribution, name, [there[i] for there in proofs])


def _replacement(attribution: Attribution, lenses: Sequence[Any]) -> Any:
    """How removed tokens are replaced: by the baseline of the lens that made the attribution, else by the
    mask token."""
    for lens in lenses:
        if attribution.method == "diffmask" and attribution.settings.get("over") == lens.over:
            return lens
    return "mask"
