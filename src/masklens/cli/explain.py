"""`masklens explain`: heat maps in the terminal, or a file, with their verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import masklens

from . import options
from .console import draw, print_json, tell, waiting, working
from .inputs import check_unused, choose_ways, explain_all, gather, load_lenses, load_subject

if TYPE_CHECKING:
    from ..attribution import Attribution, Text
    from ..evaluation.verify import Verification
    from ..methods.logit_lens import LayerPredictions
    from ..model.subject import Subject
    from ..reports.ways import Way

T = TypeVar("T")


def explain(
    texts: options.Texts = None,
    input: options.Input = None,
    column: options.Column = None,
    pair: options.Pair = False,
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
    target: options.Target = None,
    windows: options.Windows = None,
    verify: options.Verify = True,
    guard: options.Guard = None,
    out: Annotated[
        Path | None, options.of_output("--out", "FILE", "Write a json, parquet, png, svg or html file.")
    ] = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Show which tokens a prediction rests on, layer by layer.

    [bold]Examples[/bold]

      masklens explain "a fast, funny movie"
      masklens explain --model FOLDER --method gradcam --input reviews.csv
    """
    with working():
        from ..reports.export import check_output, write

        if out:
            check_output(out)
        if not verify:
            check_unused({"--guard": guard}, "--verify")
        wanted = gather(texts, input, column, limit, pair)
        check_methods(method)
        subject = load_subject(model, device, truncate, max_length, trust_remote_code)
        lenses = load_lenses(model, subject, lens, method)
        ways = choose_ways(method, lenses, lm_head, option)
        found = explain_all(subject, wanted, ways, target, seed, windows)
        attributions = text_by_text(list(found.values()))
        if out:
            with waiting(f"writing {out}"):
                write(attributions, out, subject if verify else None, lenses, guard)
            tell(f"wrote {out}")
        proofs = prove(subject, found, ways, guard) if verify else None
        layers = None if as_json else predicted(subject, attributions)
    if as_json:
        print_records(attributions, proofs)
    else:
        draw(attributions, proofs, layers)


def check_methods(names: Sequence[str] | None) -> None:
    """Raise for a method that does not exist, before the model is loaded."""
    from ..methods.registry import find

    for name in names or []:
        find(name)


def predicted(subject: Subject, attributions: Sequence[Attribution]) -> dict[Text, LayerPredictions] | None:
    """What each layer of a language model would predict, by text."""
    from ..methods.logit_lens import layer_predictions
    from ..tasks.lm import LanguageModel

    if not isinstance(subject.task, LanguageModel):
        return None
    with waiting("reading the layers"):
        texts = list(dict.fromkeys(one.text for one in attributions))
        return dict(zip(texts, layer_predictions(subject, texts), strict=True))


def prove(
    subject: Subject,
    found: Mapping[str, Sequence[Attribution]],
    ways: Mapping[str, Way],
    guard: float | None,
) -> list[Verification]:
    """The verification of every attribution at its deepest layer; a lens brings its own baseline."""
    with waiting("verifying"):
        return text_by_text(
            [
                masklens.verify(subject, some, replace=(*ways[name].lenses, "mask")[0], guard=guard)
                for name, some in found.items()
            ]
        )


def text_by_text(found: Sequence[Sequence[T]]) -> list[T]:
    """What several methods gave for the same texts: all of the first text, then all of the second, ..."""
    return [one for of_one_text in zip(*found, strict=True) for one in of_one_text]


def print_records(attributions: Sequence[Attribution], proofs: Sequence[Verification] | None) -> None:
    """Print the records as `save` writes them to JSON, each with its verification."""
    from ..attribution import record

    rows = [record(attribution) for attribution in attributions]
    for row, proof in zip(rows, proofs or [], strict=False):
        row["verification"] = asdict(proof)
    print_json(rows)
