"""What the long experiments share: fast products on a GPU, and processes that work in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..files import whole


@contextmanager
def fast_products(device: str) -> Iterator[None]:
    """TF32 matrix products on a GPU inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.startswith("cuda") else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """One process at a time is inside the block; the others wait. A process that dies lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # Windows: two processes that want the same piece both do it
            pass
        yield


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON; a number that is not finite is an error."""
    with whole(path) as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device
