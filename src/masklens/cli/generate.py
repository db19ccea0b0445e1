"""`masklens explain --generate`: the answers of a language model, explained token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import masklens

from ..errors import FileError, MethodError, TextError
from ..files import read_bytes
from ..progress import stage
from .console import print_json, tell
from .inputs import check_unused, gather, read_options

if TYPE_CHECKING:
    from ..model.subject import Subject
    from ..records.generation import Generation

MOST_BYTES = 10**8
FORM = '[{"role": "user", "content": "..."}]'
"""a chat as a file has it"""
SPANS = '["a part of the prompt", ...]'
"""spans as a file has them"""


def gather_prompts(
    chat: Path | None,
    texts: Sequence[str] | None,
    pattern: str | None,
    columns: Sequence[str] | None,
    limit: int | None,
) -> list[Any]:
    """The prompts: the messages of one chat or of several chats, or else the texts."""
    if chat is None:
        return list(gather(texts, pattern, columns, limit))
    unused = {"a text": texts, "--input": pattern, "--column": columns, "--limit": limit}
    check_unused(unused, "--generate without --chat")
    found = _messages(_read_json(chat))
    several = isinstance(found, list) and found and isinstance(_messages(found[0]), list)
    return [_checked(chat, _messages(one)) for one in (found if several else [found])]


def _read_json(file: Path) -> Any:
    try:
        return json.loads(read_bytes(file, most=MOST_BYTES))
    except ValueError as error:
        raise FileError(f"{file} is not JSON: {error}") from error


def read_units(given: str, turns: bool) -> Any:
    """The name of units, or the spans in a json file."""
    from ..records.units import check_units

    if not given.endswith(".json"):
        check_units(given, turns)
        return given
    spans = _read_json(Path(given))
    try:
        check_units(tuple(spans) if isinstance(spans, list) else None, turns)
    except TextError as error:
        said = json.dumps(spans)
        raise FileError(f"{given} has {said:.60} where a list of spans is needed: {SPANS}") from error
    return spans


def _messages(chat: Any) -> Any:
    """The messages of a chat that is written as an object, as for OpenAI; anything else as it is."""
    return chat["messages"] if isinstance(chat, dict) and "messages" in chat else chat


def _checked(file: Path, messages: Any) -> list[dict[str, str]]:
    from ..model.prompt import check_messages

    if not isinstance(messages, list) or not messages:
        raise FileError(f"{file} has {json.dumps(messages):.60} where a list of messages is needed: {FORM}")
    try:
        return check_messages(messages)
    except TextError as error:
        raise FileError(f"{file}: {error}") from error


def generation_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Options of the model's own `generate`, each given as NAME=VALUE."""
    found = read_options(given, "--generation-option")
    for name in signature(masklens.explain_generation).parameters.keys() & found.keys():
        raise MethodError(f"{name} is an option of masklens, not of generate; see: masklens explain --help")
    return found


def answer_all(
    subject: Subject,
    prompts: Sequence[Any],
    methods: Sequence[str] | None,
    options: Sequence[str] | None,
    sites: Sequence[int] | None,
    **common: Any,
) -> list[Generation]:
    """Each method's explanation of the answer to each prompt; `common` goes to `explain_generation`."""
    from ..methods.explain import chosen_sites
    from ..methods.registry import find
    from ..methods.usual import usual_method

    chosen, own, made = [find(name) for name in methods or [usual_method(subject)]], read_options(options), []
    for method in chosen:
        method.check_options(list(own))
        chosen_sites(subject, method, sites, None)
    for prompt in prompts:
        for method in chosen:
            # One backward pass gives the scores of all layers; other methods pay for each layer.
            where = sites or ("all" if method.all_sites_at_once else None)
            with stage(f"explaining the answer with {method.name}"):
                one = masklens.explain_generation(
                    subject, prompt, method.name, sites=where, method_options=own, **common
                )
            made.append(one)
    return made


def prove_answers(subject: Subject, made: Sequence[Generation]) -> list[Generation]:
    """The same answers, each step with its verification."""
    with stage("verifying"):
        return [replace(one, verification=tuple(masklens.verify_generation(subject, one))) for one in made]


def keep_answers(made: Sequence[Generation], out: Path) -> None:
    """Write explained answers to a file."""
    from ..reports.export import write_answers

    with stage(f"writing {out}"):
        write_answers(made, out)
    tell(f"wrote {out}")


def show_answers(made: Sequence[Generation], as_json: bool) -> None:
    """Print every answer as a heat map (steps x tokens) and a table with one row per step."""
    from rich.console import Console

    from ..records.generation import row
    from ..reports.terminal import AnswerMap, answer_proof_line, answer_table

    if as_json:
        print_json([row(one) for one in made])
        return
    console = Console()
    for one in made:
        console.print(AnswerMap(one))
        console.print(answer_table(one))
        if one.verification:
            console.print(answer_proof_line(one))
        console.print()
