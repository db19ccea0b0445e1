"""Which of several processes this one is, as torchrun and accelerate launch say it."""

from __future__ import annotations

import os

from .errors import TrainingError


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device(asked: str | None) -> str | None:
    """The device of this process: of several processes on a machine with GPUs, each has its own."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or asked not in (None, "cuda"):
        return asked
    import torch

    return f"cuda:{local}" if torch.cuda.is_available() else asked


def check_world(found: int) -> None:
    """Raise where a launcher started processes that do not know of each other: each would fit alone."""
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    if asked != found:
        raise TrainingError(
            f"{asked} processes were started, but this one sees {found}; start them with torchrun, or set "
            f"ACCELERATE_USE_CPU=true where there are no GPUs"
        )
