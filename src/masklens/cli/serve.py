"""`masklens serve`: a page on this machine that explains the texts you type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import tell, working
from .inputs import load_lenses, load_subject, packaged_head


def serve(
    model: options.Model = None,
    device: options.Device = None,
    trust_remote_code: options.TrustRemoteCode = False,
    lens: options.Lenses = None,
    lm_head: options.Head = None,
    port: Annotated[int, options.of_run("--port", "N", "0 takes any free port.", min=0, max=65535)] = 8765,
    open_browser: Annotated[
        bool, options.of_run("--open/--no-open", options.FLAG, "Open the page in the browser.")
    ] = True,
    seed: options.Seed = 0,
) -> None:
    """Open a page on this machine that explains the texts you type.

    [bold]Examples[/bold]

      masklens serve
      masklens serve --model FOLDER --lens LENS_FOLDER --port 0
    """
    with working():
        from ..reports.serve import check_installed
        from ..reports.serve import serve as serve_page

        check_installed()
        subject = load_subject(model, device, trust_remote_code=trust_remote_code)
        lenses = load_lenses(model, subject, lens, packaged=("inputs", "states"))

        def ready(address: str) -> None:
            tell(f"the page is at {address} (Ctrl-C ends it)")
            if open_browser:
                typer.launch(address)

        title = f"masklens · {Path(model).name}" if model else "masklens"
        serve_page(subject, lenses, packaged_head(model, lm_head), port, seed, title, ready)
