"""`masklens explain`: heat maps in the terminal, or a file, with their verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import masklens

from . import options
from .console import draw, print_json, tell, waiting, working
from .generate import answer_all, gather_prompts, keep_answers, show_answers
from .inputs import check_unused, choose_ways, explain_all, gather, load_lenses, load_subject

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..evaluation.verify import Verification
    from ..model.subject import Subject
    from ..reports.ways import Way

T = TypeVar("T")


def explain(
    texts: options.Texts = None,
    input: options.Input = None,
    column: options.Column = None,
    pair: options.Pair = False,
    limit: options.Limit = None,
    generate: options.Generate = False,
    chat: options.Chat = None,
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
    units: options.Units = "tokens",
    max_new_tokens: options.NewTokens = 64,
    continuation: options.Continuation = None,
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
      masklens explain --model FOLDER --chat messages.json --units sentences
    """
    with working():
        from ..reports.export import check_output, write

        if out:
            check_output(out)
        if not verify:
            check_unused({"--guard": guard}, "--verify")
        check_methods(method)
        if generate or chat:
            unused = {"--pair": pair, "--lens": lens, "--lm-head": lm_head, "--windows": windows}
            check_unused(unused | {"--guard": guard}, "texts to explain without --generate or --chat")
            prompts = gather_prompts(chat, lambda: gather(texts, input, column, limit))
        else:
            mine = {"--units": units != "tokens", "--continuation": continuation}
            check_unused(mine, "--generate or --chat")
            wanted = gather(texts, input, column, limit, pair)
        subject = load_subject(model, device, truncate, max_length, trust_remote_code)
        if generate or chat:
            asked = {"units": units, "target": target, "continuation": continuation, "seed": seed}
            made = answer_all(subject, prompts, method, option, max_new_tokens=max_new_tokens, **asked)
            verified = keep_answers(subject, made, out, verify)
        else:
            lenses = load_lenses(model, subject, lens, method)
            ways = choose_ways(method, lenses, lm_head, option)
            found = explain_all(subject, wanted, ways, target, seed, windows)
            attributions = text_by_text(list(found.values()))
            if out:
                with waiting(f"writing {out}"):
                    write(attributions, out, subject if verify else None, lenses, guard)
                tell(f"wrote {out}")
            proofs = prove(subject, found, ways, guard) if verify else None
    if generate or chat:
        show_answers(made, verified, as_json)
    elif as_json:
        print_records(attributions, proofs)
    else:
        draw(attributions, proofs)


def check_methods(names: Sequence[str] | None) -> None:
    """Raise for a method that does not exist, before the model is loaded."""
    from ..methods.registry import find

    for name in names or []:
        find(name)


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
