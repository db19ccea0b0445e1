"""What the experiments share: fast products on a GPU, processes in one folder, and what made a result."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .. import __version__
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


@cache
def commit() -> str:
    """The commit of the repository that this code runs from, and whether the code was changed since, as when
    first asked for; outside of a repository, the version of the package."""
    package = Path(__file__).parents[1]
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")  # else another's repository
        changed = _git(package, "status", "--porcelain", "--", "*.py")
        return _git(package, "rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return __version__


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
