"""`masklens fit`: a lens from a set of texts."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import masklens

from ..layers import site_name
from . import options
from .console import print_json, show, tell, working
from .inputs import gather, load_subject
from .wording import in_options

of_lens = partial(options.option, "Lens")


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
        Literal["inputs", "states"], of_lens("--over", "inputs|states", "What the masks are over.")
    ] = "inputs",
    margin: Annotated[float, of_lens("--margin", "NATS", "The divergence the masks may cause.")] = 0.1,
    steps: Annotated[int | None, of_lens("--steps", "N", "Steps of training.", min=1)] = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Fit a DiffMask lens on a set of texts and report how it does on held-out ones.

    On several GPUs: torchrun --nproc-per-node N -m masklens fit ...

    [bold]Examples[/bold]

      masklens fit --model FOLDER --data reviews.csv --out my_lens
      masklens fit --model FOLDER --data reviews.csv --over states --out my_lens
    """
    with working():
        from ..diffmask.processes import is_main, own_device
        from ..files import check_folder_writable

        def say(message: str) -> None:
            tell(in_options(message))

        check_folder_writable(out)
        texts = gather([], data, column, limit)
        subject = load_subject(model, own_device(device), truncate, max_length, trust_remote_code)
        settings: dict[str, Any] = {} if steps is None else {"steps": steps}
        if is_main():
            tell(f"fitting masks over {over} on {len(texts):,} texts")
            settings["report"] = say
        lens = masklens.DiffMask.fit(subject, texts, over, margin, seed, folder=out / "training", **settings)
        if not is_main():
            return
        lens.save_pretrained(out)
        shutil.rmtree(out / "training", ignore_errors=True)  # kept only to go on from
        for event in lens.events:
            say(event)
        tell(f"wrote {out}")
    rows = [row._asdict() for row in lens.diagnostics]
    if as_json:
        print_json(rows)
    else:
        show([{"layer": site_name(row.pop("site")), **row} for row in rows])
