"""python -m experiments NAME --out DIR"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from .emergence import study
from .emergence.planted import TASKS

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.callback()
def main() -> None:
    """Experiments on the papers and on planted models."""


@app.command()
def emergence(
    out: Annotated[Path, typer.Option("--out", help="Where results go; what is there is not done again.")],
    task: Annotated[
        list[str] | None, typer.Option("--task", help="One of the tasks; by default all.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="By default 0, 1 and 2.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Also a lens for each site alone.")] = False,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Fewer steps, to try it.")] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Of the CPU.")] = 1,
) -> None:
    """Planted transformers: what lenses drop at each layer, beside what can be known there."""
    torch.set_num_threads(threads)
    study.run(out, task or list(TASKS), seed or [0, 1, 2], alone, steps)
    typer.echo((out / "results.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    app()
