"""The small sentiment model that ships inside the package, with its LM head and its lenses.

Its card, assets/sentiment/README.md, says how it was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .subject import Subject

if TYPE_CHECKING:
    import torch

    from .diffmask.lens import DiffMask

HOME = Path(__file__).with_name("assets") / "sentiment"
OVER = ("inputs", "states")


def load_default(device: str | torch.device | None = None) -> Subject:
    """The model in full precision; it is kept in half."""
    return Subject.from_pretrained(HOME, device=device, dtype="float32")


def lens(subject: Subject, over: str = "inputs") -> DiffMask:
    """The packaged model's lens over its "inputs" or its "states"."""
    from .diffmask.lens import DiffMask

    return DiffMask.from_pretrained(HOME / f"lens-{over}", subject)
