"""`masklens report`: explanations and their verification in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import masklens

from ..progress import stage, step
from . import options
from .console import print_json, tell, working
from .inputs import check_methods, check_unused, choose_ways, explain_all, gather, load_lenses, load_subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..attribution import Explanations, Text
    from ..evaluation.table import Table
    from ..methods.ways import Way
    from ..model.subject import Subject

INPUT = "Attributions that explain wrote (json, parquet), or texts as for explain; - is standard input."
SLICE = "A column by which the report can filter its texts; repeatable."
SPEECH = "Add tables of scores by part of speech (English; needs spaCy)."


def report(
    texts: options.Texts = None,
    input: Annotated[str | None, options.of_texts("--input", "FILE", INPUT)] = None,
    column: options.Column = None,
    pair: options.Pair = False,
    label_column: options.LabelColumn = None,
    slice_column: Annotated[list[str] | None, options.of_texts("--slice-column", "NAME", SLICE)] = None,
    limit: options.Limit = None,
    model: options.Model = None,
    device: options.Device = None,
    truncate: options.Truncate = False,
    max_length: options.MaxLength = None,
    trust_remote_code: options.TrustRemoteCode = False,
    method: options.Method = None,
    option: options.MethodOption = None,
    lens: options.Lenses = None,
    lm_head: options.Head = None,
    target: options.Targets = None,
    windows: options.Windows = None,
    guard: options.Guard = None,
    games: Annotated[
        bool, options.of_output("--games", options.FLAG, "Add the hiding and revealing games.")
    ] = False,
    parts_of_speech: Annotated[bool, options.of_output("--parts-of-speech", options.FLAG, SPEECH)] = False,
    title: Annotated[str, options.of_output("--title", "TEXT", "The title.")] = "masklens report",
    out: Annotated[Path, options.of_output("--out", "FILE", "The html file.")] = Path("report.html"),
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Write explanations and their verification to one HTML file.

    [bold]Examples[/bold]

      masklens report --input reviews.csv --label-column label --games
      masklens report --input made.parquet --model FOLDER --out made.html
    """
    with working():
        from ..analysis import load_spacy
        from ..evaluation.imported import holds_attributions, read_attributions
        from ..files import check_writable
        from ..reports.report import first_texts, named

        check_writable(out)
        check_methods(method)
        if parts_of_speech:
            load_spacy()
        made = read_attributions(input) if input and holds_attributions(input) else None
        if made is not None:
            check_unused({"--method": method, "--target": target, "--lm-head": lm_head, "a text": texts})
            check_unused({"--option": option, "--windows": windows})
        if target and len(target) > 1:
            check_unused({"--games": games}, "one target: give --target once")
        if made is not None and not model:
            check_unused({"--lens": lens, "--games": games, "--guard": guard}, "the model: add --model")
        subject = None
        if model or made is None:
            subject = load_subject(model, device, truncate, max_length, trust_remote_code)
        lenses = load_lenses(model, subject, lens, method, ("inputs", "states")) if subject else []
        labels = read_answers(input, label_column, limit, subject)
        columns = read_columns(input, slice_column, limit)
        sets: dict[str, Any]
        if made is not None:
            sets = named(first_texts(made, limit))
        else:
            assert subject is not None
            wanted = gather(texts, input, column, limit, pair)
            ways = choose_ways(subject, method, lenses, lm_head, option)
            sets = explain_targets(subject, wanted, ways, target, seed, windows)
        table = play(subject, sets) if games else None
        more: dict[str, Any] = {
            "labels": labels,
            "columns": columns,
            "evaluation": table,
            "parts_of_speech": parts_of_speech,
        }
        with stage("verifying and writing the report" if subject else "writing the report"):
            masklens.report(sets, out, title, subject, lenses, guard=guard, **more)
        tell(f"wrote {out}")
    if as_json:
        print_json({"report": str(out), "bytes": out.stat().st_size, "methods": list(sets)})


def explain_targets(
    subject: Subject,
    texts: Sequence[Text],
    ways: Mapping[str, Way],
    targets: Sequence[str] | None,
    seed: int,
    windows: int | None,
) -> dict[str, Explanations]:
    """The attributions of each way (a method or a lens), for one target after the other."""
    from ..attribution import Explanations

    wanted: Sequence[str | None] = list(dict.fromkeys(targets or [])) or [None]
    parts = [explain_all(subject, texts, ways, one, seed, windows) for one in wanted]
    return {
        name: Explanations(
            [a for part in parts for a in part[name]], sum(part[name].seconds or 0 for part in parts)
        )
        for name in ways
    }


def read_columns(
    pattern: str | None, names: Sequence[str] | None, limit: int | None
) -> dict[str, list[Any]] | None:
    """The values of the named columns of the file, one value per text."""
    from ..files.reading import read_labels

    if names and not pattern:
        check_unused({"--slice-column": names}, "a file of texts (--input)")
    return {name: read_labels(str(pattern), name, limit) for name in names or []} or None


def play(subject: Subject | None, sets: dict[str, Any]) -> Table:
    """The hiding and revealing games."""
    with stage("playing the hiding and revealing games"), step("games"):
        return masklens.evaluate(subject, sets, metrics=["hiding", "revealing"])


def read_answers(
    pattern: str | None, column: str | None, limit: int | None, subject: Subject | None
) -> list[str | list[str]] | None:
    """The gold labels in a file: label names, or for question answering lists of right answers."""
    if not pattern or not column:
        return None
    from ..files.reading import read_labels
    from ..tasks.answers import gold_answers
    from ..tasks.spans import QuestionAnswering

    asked = subject is not None and isinstance(subject.task, QuestionAnswering)
    return [
        gold_answers(label) if asked or isinstance(label, list | dict) else str(label)
        for label in read_labels(pattern, column, limit)
    ]
