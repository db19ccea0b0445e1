"""`masklens evaluate --choose`: choose a method, and print the command that uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

import masklens

from .console import print_json, show, tell, working
from .inputs import check_methods, check_unused, gather, load_lenses, load_subject
from .wording import in_options

if TYPE_CHECKING:
    from ..evaluation.choose import Choice
    from ..evaluation.table import Table

MODEL = ("model", "device", "truncate", "max_length", "trust_remote_code")
TEXTS = ("input", "column", "pair", "limit")
SHARED = (*MODEL, *TEXTS, "lens", "lm_head", "seed", "texts")
"""options that `explain` has too, with the same meaning"""
MEASURES = ("attributions", "label_column", "option", "target", "windows", "metric", "draws", "normalised")
"""options of `evaluate` that --choose does not use"""


def choose(ctx: typer.Context) -> None:
    """Choose a method for the texts given to `evaluate`, and print the tables and the command."""
    given = ctx.params
    with working():
        from ..files import check_writable, whole

        changed = {name: ctx.get_parameter_source(name).name != "DEFAULT" for name in MEASURES}  # type: ignore[union-attr]
        check_unused({flag(name): yes for name, yes in changed.items()}, "evaluate without --choose")
        if given["out"]:
            check_writable(given["out"])
        check_methods(given["method"])
        texts = gather(*(given[name] for name in ("texts", "input", "column", "limit", "pair")))
        subject = load_subject(*(given[name] for name in MODEL))
        lenses = load_lenses(given["model"], subject, given["lens"], given["method"])
        choice = masklens.choose(
            subject, texts, given["method"], lenses, given["lm_head"], seed=given["seed"]
        )
        choice = replace(choice, tried=in_words_of_options(choice.tried))
        command = command_line(choice, lenses, given)
        data = {"command": command, **choice.to_dict()}
        if given["out"]:
            with whole(given["out"]) as part:
                part.write_text(json.dumps(data, indent=1), encoding="utf-8")
            tell(f"wrote {given['out']}")
    if given["as_json"]:
        print_json(data)
    else:
        show(choice)
        typer.echo(f"\n{command}")


def command_line(choice: Choice, lenses: list[Any], given: Mapping[str, Any]) -> str:
    """The `masklens explain` command that uses the choice, with the options that were given."""
    folders = dict(zip(map(id, lenses), given["lens"] or [], strict=False))  # packaged lenses have no folder
    own = {
        "lens": [folders[id(lens)] for lens in choice.way.lenses if id(lens) in folders],
        "lm_head": given["lm_head"] if choice.method == "decoded_gradcam" else None,
    }
    return choice.command(*as_words({name: given[name] for name in SHARED} | own))


def in_words_of_options(table: Table) -> Table:
    """The table, with options of the command line instead of Python arguments in its notes."""
    return replace(table, notes=[in_options(note) for note in table.notes])


def as_words(given: Mapping[str, Any]) -> list[str]:
    """The words of a command line: options first, then the texts."""
    words: list[str] = []
    for name, value in given.items():
        if value is True:
            words.append(flag(name))
        elif value and name != "texts":
            several = value if isinstance(value, list | tuple) else [value]
            words += [word for one in several for word in (flag(name), str(one))]
    texts = given["texts"] or []
    return words + ["--"] * any(text.startswith("-") and text != "-" for text in texts) + list(texts)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
