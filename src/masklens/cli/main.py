"""The command line: thin commands over the public functions, one file each.

torch and other slow packages are imported inside the commands, so that --help is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

import masklens

from . import corpus, demo, evaluate, explain, fit, methods, report, serve
from .app import app, command


def main() -> None:
    """Run the command line."""
    app(prog_name="masklens")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"masklens {masklens.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for function in (
    demo.demo,
    explain.explain,
    report.report,
    serve.serve,
    fit.fit,
    evaluate.evaluate,
    corpus.corpus,
    methods.methods,
):
    command(function)
