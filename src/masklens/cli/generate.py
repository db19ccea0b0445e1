"""`masklens explain --generate`: the answers of a language model, explained token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import masklens

from ..errors import FileError
from ..files import read_bytes
from ..progress import stage
from .console import print_json, tell
from .inputs import read_options

if TYPE_CHECKING:
    from ..attribution import Text
    from ..evaluation.verify import Verification
    from ..model.subject import Subject
    from ..records.generation import Generation

DEFAULT_METHOD = "gradient"
"""one walk back through the model for each token of the answer"""
MOST_BYTES = 10**8


def gather_prompts(chat: Path | None, texts: Callable[[], list[Text]]) -> list[Any]:
    """Prompts: the messages of a chat, or of several, or else texts."""
    if chat is None:
        return list(texts())
    from ..model.prompt import check_messages

    try:
        found = json.loads(read_bytes(chat, most=MOST_BYTES))
    except ValueError as error:
        raise FileError(f"{chat} is no json: {error}") from error
    several = found if isinstance(found, list) and found and isinstance(found[0], list) else [found]
    return [check_messages(one) for one in several]


def answer_all(
    subject: Subject,
    prompts: Sequence[Any],
    methods: Sequence[str] | None,
    options: Sequence[str] | None,
    **common: Any,
) -> list[Generation]:
    """What each method says about the answer to each prompt; `common` goes to `explain_generation`."""
    from ..methods.registry import find

    made = []
    for prompt in prompts:
        for name in methods or [DEFAULT_METHOD]:
            # One walk back gives the scores of all layers; other methods pay for each layer.
            sites = "all" if find(name).all_sites_at_once else None
            with stage(f"explaining the answer with {name}"):
                one = masklens.explain_generation(
                    subject, prompt, name, sites=sites, method_options=read_options(options), **common
                )
            made.append(one)
    return made


def keep_answers(
    subject: Subject, made: Sequence[Generation], out: Path | None, verify: bool
) -> list[list[Verification]] | None:
    """Write explained answers to a file, and verify them."""
    if out:
        from ..reports.export import write_answers

        with stage(f"writing {out}"):
            write_answers(made, out, subject if verify else None)
        tell(f"wrote {out}")
    with stage("verifying"):
        return [masklens.verify_generation(subject, one) for one in made] if verify else None


def show_answers(
    made: Sequence[Generation], proofs: Sequence[Sequence[Verification]] | None, as_json: bool
) -> None:
    print_answers(made, proofs) if as_json else draw_answers(made, proofs)


def print_answers(made: Sequence[Generation], proofs: Sequence[Sequence[Verification]] | None) -> None:
    from ..records.generation import row
    from ..records.verification import verification_record

    rows = [row(one) for one in made]
    for one, proof in zip(rows, proofs or [], strict=False):
        one["verification"] = [verification_record(step) for step in proof]
    print_json(rows)


def draw_answers(made: Sequence[Generation], proofs: Sequence[Sequence[Verification]] | None) -> None:
    """Print every answer as a map of steps by tokens, with its verification."""
    from rich.console import Console

    from ..reports.terminal import AnswerMap, answer_proof_line, answer_table

    console = Console()
    for i, one in enumerate(made):
        console.print(AnswerMap(one))
        console.print(answer_table(one, proofs[i] if proofs else ()))
        if proofs:
            console.print(answer_proof_line(one, proofs[i]))
        console.print()
