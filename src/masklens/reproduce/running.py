"""What the long experiments share: fast products on a GPU, and processes that work in one folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ..errors import MethodError
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


def within(piece: str, part: str) -> bool:
    """Whether a piece of work such as "lens/inputs/0" belongs to a part such as "lens"."""
    return piece == part or piece.startswith(f"{part}/")


class Study(Protocol):
    """One model, its data, and what was done so far."""

    model: str

    @property
    def settings(self) -> dict[str, Any]:
        """What a piece was done with."""

    def path(self, piece: str) -> Path:
        """The file of a piece."""


S = TypeVar("S", bound=Study)


def do_piece(
    study: S,
    piece: str,
    work: Mapping[str, Callable[[S, str], dict[str, Any] | None]],
    tell: Callable[[str], None],
) -> None:
    """Do a piece unless it is there; one that cannot be done here is told of and left out."""
    path = study.path(piece)
    if path.exists():
        return
    start = time.perf_counter()
    part, _, rest = piece.partition("/")
    try:
        found = work[part](study, rest)
    except MethodError as error:
        tell(f"{study.model}: {piece}: left out ({error})")
        return
    if found is not None:
        write_json(path, {**found, "settings": study.settings, "seconds": time.perf_counter() - start})
    tell(f"{study.model}: {piece}: {time.perf_counter() - start:.1f} s")


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON; a number that is not finite is an error."""
    with whole(path) as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device
