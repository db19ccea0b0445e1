"""An experiment on one model: its data, its lenses and its finished parts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from masklens.attribution import Text
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import CHECKPOINT
from masklens.errors import FileError
from masklens.model.subject import Subject

from .parts import Parts, only_one
from .results import device_name

OVERS = ("inputs", "states")
"""what a lens masks"""


@dataclass
class ModelRun:
    """One model, its data, and the finished parts of the work."""

    model_dir: Path
    """the folder of the checkpoints"""
    data: Path
    out: Path
    model: str
    """the name of a checkpoint"""
    device: str
    lenses: Path | None
    """a folder of fitted lenses; without one, lenses are fitted and kept in OUT/lenses"""
    limit: int | None
    """use at most so many texts of each set"""
    steps: int | None
    """the number of steps to fit a lens, instead of the default"""
    seed: int

    @property
    def smaller(self) -> str:
        """A suffix for the names of parts and lenses of a run with a limit or fewer steps, to distinguish
        them from those of the full run."""
        given = {"first": self.limit, "steps": self.steps}
        return "".join(f"-{name}{value}" for name, value in given.items() if value is not None)

    @property
    def suffix(self) -> str:
        return f"-seed{self.seed}{self.smaller}"

    @cached_property
    def parts(self) -> Parts:
        return self.parts_of(self.model)

    def parts_of(self, name: str) -> Parts:
        return Parts(self.out / "parts" / f"{name}{self.suffix}", self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        given = {"seed": self.seed, "limit": self.limit, "steps": self.steps}
        return given | {"device": device_name(self.device)}

    @property
    def batch_size(self) -> int:
        return 32 if self.device == "cpu" else 256

    @property
    def checkpoint(self) -> str:
        """such as mpnet-sst5"""
        return self.model

    @cached_property
    def subject(self) -> Subject:
        return Subject.from_pretrained(self.model_dir / self.checkpoint, device=self.device, truncate=True)

    @property
    def fit_settings(self) -> dict[str, int]:
        """Settings in which the lenses of a small run differ from the defaults."""
        given = {"steps": self.steps, "batch_size": self.limit}
        return {name: value for name, value in given.items() if value is not None}

    def load_or_fit(self, name: str, suffix: str, fit: Callable[[Path], None]) -> DiffMask:
        """The lens of this name from the folder of lenses, or else from OUT/lenses, fitted where it is not
        there yet."""
        if self.lenses is not None:
            return DiffMask.from_pretrained(self.lenses / name, self.subject)
        folder = self.out / "lenses" / f"{name}{suffix}"
        if not (folder / "lens.json").exists():
            with only_one(folder.parent / f".{folder.name}.lock"):
                if not (folder / "lens.json").exists():  # another process may just have fitted it
                    fit(folder)
        return DiffMask.from_pretrained(folder, self.subject)

    def fit_into(
        self, folder: Path, part: str, texts: Sequence[Text], over: str, margin: float, seed: int, **how: Any
    ) -> None:
        """Fit a lens with checkpoints in its folder; write the part about the fit, then the lens.

        The settings are the defaults, except for `how` and `fit_settings`. The seconds of a resumed fit count
        from the restart.
        """
        training = folder / "training"
        resumed, start = (training / CHECKPOINT).exists(), time.perf_counter()
        how |= {"folder": training, "show_progress": True, **self.fit_settings}
        lens = DiffMask.fit(self.subject, texts, over, margin, seed, **how)
        found = {
            "resumed": resumed,
            "texts": len(texts),
            "peak_bytes": torch.cuda.max_memory_allocated() if self.device == "cuda" else None,
            "diagnostics": [d._asdict() for d in lens.diagnostics],
            "events": lens.events,
            "lens": asdict(lens.settings),
        }
        self.parts.write(part, found, time.perf_counter() - start)
        lens.save_pretrained(folder)
        shutil.rmtree(training, ignore_errors=True)


def default_device(device: str | None) -> str:
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def checkpoints_in(model_dir: Path, names: Sequence[str]) -> list[str]:
    """Those of the named checkpoints that the folder holds."""
    there = [name for name in names if (model_dir / name / "config.json").exists()]
    if not there:
        raise FileError(f"{model_dir} has none of {', '.join(names)}; --model-dir is a folder of checkpoints")
    return there
