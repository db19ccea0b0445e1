"""Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from ..progress import showing, stage
from ..reports.labels import printable
from .wording import in_options

if TYPE_CHECKING:
    from ..attribution import Attribution, Text
    from ..methods.logit_lens import LayerPredictions


def tell(message: str) -> None:
    """Say something to the user without mixing it with the results."""
    typer.echo(printable(message), err=True)


@contextmanager
def working() -> Iterator[None]:
    """Around the work of a command, before its results: show progress, send what libraries print to
    standard error, and show each warning in one line."""

    def warn(message: Any, *about: Any, **more: Any) -> None:
        tell(f"warning: {in_options(' '.join(str(message).split()))}")

    with showing(is_first_process()), redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.showwarning = warn
        with stage("loading the packages"):
            import_module("torch")  # slow; done here under its own progress bar
        yield


def is_first_process() -> bool:
    """Whether this is the first of the processes that torchrun starts, the only one that prints."""
    return os.environ.get("RANK", "0") == "0"


def print_json(data: Any) -> None:
    """Print data as JSON on standard output; values that JSON does not know become strings."""
    typer.echo(json.dumps(data, default=str))


def draw(attributions: Sequence[Attribution], layers: Mapping[Text, LayerPredictions] | None = None) -> None:
    """Print each attribution as a heat map with its verification, and below the first map of each text the
    predictions of the layers."""
    from rich.console import Console

    from ..reports.terminal import HeatMap, layers_line, proof_line

    console, unread = Console(), dict(layers or {})
    for attribution in attributions:
        console.print(HeatMap(attribution))
        if attribution.text in unread:
            console.print(layers_line(unread.pop(attribution.text)))
        if attribution.verification:
            console.print(proof_line(attribution, attribution.verification))
        console.print()
    for note in dict.fromkeys(one.note for one in (layers or {}).values() if one.note):
        console.print(f"Each layer's own prediction: {note[0].lower()}{note[1:]}", style="dim")


def show(table: Any) -> None:
    """Print a table, or a list of dicts as a table."""
    from rich.console import Console
    from rich.table import Table

    if isinstance(table, list):
        made = Table(*table[0])
        for row in table:
            made.add_row(*map(plain, row.values()))
        table = made
    Console().print(table, highlight=False)


def plain(value: Any) -> str:
    """A value for a table: numbers with four digits, lists joined by commas, no markup."""
    from rich.markup import escape

    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return escape(", ".join(map(str, value)))
    return escape("" if value is None else str(value))
