"""`masklens fit`: fit a lens on a set of texts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import masklens

from ..records.layers import site_name
from . import options
from .console import print_json, show, tell, working
from .inputs import gather, load_subject
from .wording import in_options

of_lens = partial(options.option, "Lens")
STEPS = 2000
QUICK: dict[str, Any] = {"steps": 500, "batch_size": 64, "held_out": 0.2, "evaluate_every": 100}
"""the settings of --quick: for a model with 6 blocks an eighth of the work of the defaults"""
QUICKLY = (
    f"For a first look: {QUICK['steps']} steps of {QUICK['batch_size']} texts. The lens may mask fewer words."
)
BATCH = "Texts of one training step, over all layers."


def fit(
    data: options.Data,
    out: Annotated[Path, options.of_output("--out", "FOLDER", "The folder that will hold the lens.")],
    column: options.Column = None,
    limit: options.Limit = None,
    model: options.Model = None,
    device: options.Device = None,
    truncate: options.Truncate = False,
    max_length: options.MaxLength = None,
    trust_remote_code: options.TrustRemoteCode = False,
    over: Annotated[
        Literal["inputs", "states"], of_lens("--over", "inputs|states", "What is masked.")
    ] = "inputs",
    margin: Annotated[float, of_lens("--margin", "NATS", "How far the masks may move the output.")] = 0.1,
    quick: Annotated[bool, of_lens("--quick", options.FLAG, QUICKLY)] = False,
    steps: Annotated[
        int | None, of_lens("--steps", "N", "Steps of training.", min=1, show_default=f"{STEPS:,}")
    ] = None,
    batch_size: Annotated[
        int | None, of_lens("--batch-size", "N", BATCH, min=1, show_default="16 a layer, GPU 32")
    ] = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Fit a DiffMask lens on a set of texts and measure it on held-out texts. Ctrl-C stops a fit; the same
    command resumes it from its last checkpoint.

    [bold]Examples[/bold]

      masklens fit --model FOLDER --data reviews.csv --out my_lens --quick
      masklens fit --model FOLDER --data reviews.csv --over states --out my_lens
      torchrun --nproc-per-node N -m masklens fit ...   # on several GPUs
    """
    with working():
        from ..diffmask.processes import is_main, own_device
        from ..diffmask.trainer import Settings
        from ..files import check_folder_writable

        def say(message: str) -> None:
            tell(in_options(message))

        check_folder_writable(out)
        Settings(margin, steps or 1)
        texts = gather([], data, column, limit)
        subject = load_subject(model, own_device(device), truncate, max_length, trust_remote_code)
        settings: dict[str, Any] = chosen_settings(quick, steps, batch_size)
        if is_main():
            tell(f"fitting masks over {over} on {len(texts):,} texts")
            settings["report"] = say
        with told_when_stopped(out / "training"):
            lens = masklens.DiffMask.fit(
                subject, texts, over, margin, seed, folder=out / "training", **settings
            )
        if not is_main():
            return
        lens.save_pretrained(out)
        shutil.rmtree(out / "training", ignore_errors=True)  # needed only to resume
        for event in lens.events:
            say(event)
        tell(f"wrote {out}")
    rows = [row._asdict() for row in lens.diagnostics]
    if as_json:
        print_json(rows)
    else:
        show([{"layer": site_name(row.pop("site")), **row} for row in rows])


def chosen_settings(quick: bool, steps: int | None, batch_size: int | None) -> dict[str, Any]:
    """The settings that differ from the defaults; --steps and --batch-size override --quick."""
    given = {"steps": steps, "batch_size": batch_size}
    return (QUICK if quick else {}) | {name: value for name, value in given.items() if value is not None}


@contextmanager
def told_when_stopped(folder: Path) -> Iterator[None]:
    """On Ctrl-C, say what is saved and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        from ..diffmask.forecast import saved_step

        step = saved_step(folder)
        if step:
            tell(f"stopped; {step:,} steps are saved in {folder}: the same command goes on from there")
        else:
            tell("stopped before the first checkpoint: nothing is saved; the same command starts again")
        raise typer.Exit(130) from None
