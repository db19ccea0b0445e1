"""A study of one model, done in pieces that are kept as soon as they are there.

A piece has a name such as "lens/inputs/0" and a file of its own below OUT/parts; a piece that is there is not
done again. Several processes may work in one folder, each at its own pieces.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..attribution import Text
from ..diffmask.lens import DiffMask
from ..diffmask.trainer import CHECKPOINT
from ..errors import FileError, MethodError
from ..subject import Subject
from .running import commit, device_name, only_one, write_json


@dataclass
class Study:
    """One model, its data, and what was done so far."""

    model_dir: Path
    data: Path
    out: Path
    model: str
    device: str
    lenses: Path | None
    """a folder of lenses; without one they are fitted and kept in OUT/lenses"""
    limit: int | None
    steps: int | None
    seed: int

    @property
    def cut(self) -> str:
        """What a smaller run is called; its lenses and pieces are others than those of the whole one."""
        given = {"first": self.limit, "steps": self.steps}
        return "".join(f"-{name}{value}" for name, value in given.items() if value is not None)

    @property
    def suffix(self) -> str:
        """Of the names of this run's pieces."""
        return f"-seed{self.seed}{self.cut}"

    @property
    def settings(self) -> dict[str, Any]:
        """What a piece was done with."""
        given = {"seed": self.seed, "limit": self.limit, "steps": self.steps}
        return given | {"device": device_name(self.device), "commit": commit()}

    @property
    def parts(self) -> Path:
        """The folder of the pieces."""
        return self.out / "parts" / f"{self.model}{self.suffix}"

    def path(self, piece: str) -> Path:
        return self.parts / f"{piece.replace('/', '-')}.json"

    @property
    def smaller(self) -> dict[str, int]:
        """Settings of the lenses of a small run."""
        given = {"steps": self.steps, "batch_size": self.limit}
        return {name: value for name, value in given.items() if value is not None}

    def load_or_fit(self, subject: Subject, name: str, folder: Path, fit: Callable[[Path], None]) -> DiffMask:
        """The lens of this name from the folder of lenses, or the one that was fitted into `folder`."""
        if self.lenses is not None:
            return DiffMask.from_pretrained(self.lenses / name, subject)
        if not (folder / "lens.json").exists():
            with only_one(folder.parent / f".{folder.name}.lock"):
                if not (folder / "lens.json").exists():  # another process may just have fitted it
                    fit(folder)
        return DiffMask.from_pretrained(folder, subject)

    def fit_into(
        self,
        folder: Path,
        piece: str,
        subject: Subject,
        texts: Sequence[Text],
        over: str,
        margin: float,
        seed: int,
        **how: Any,
    ) -> None:
        """Fit a lens, with checkpoints in its folder, and write the lens, its card and the piece of the fit.

        Settings are the defaults but for `how` and, in a small run, `smaller`. The seconds of a fit that was
        taken up again are those of its last part.
        """
        training = folder / "training"
        resumed, start = (training / CHECKPOINT).exists(), time.perf_counter()
        how |= {"folder": training, "show_progress": sys.stderr.isatty(), **self.smaller}
        lens = DiffMask.fit(subject, texts, over, margin, seed, **how)
        write_json(
            self.path(piece),
            {
                "seconds": time.perf_counter() - start,
                "resumed": resumed,
                "texts": len(texts),
                "peak_bytes": torch.cuda.max_memory_allocated() if self.device == "cuda" else None,
                "diagnostics": [d._asdict() for d in lens.diagnostics],
                "events": lens.events,
                "lens": asdict(lens.settings),
                "settings": self.settings,
            },
        )
        lens.save_pretrained(folder)
        shutil.rmtree(training, ignore_errors=True)


S = TypeVar("S", bound=Study)
Work = Mapping[str, Callable[[S, str], dict[str, Any] | None]]
"""what is done for a part, from the study and the rest of a piece's name"""


def do_piece(study: S, piece: str, work: Work[S], tell: Callable[[str], None]) -> None:
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


def chosen(pieces: Iterable[str], parts: Sequence[str] | None) -> list[str]:
    """The pieces that belong to these parts, or all; a part is a piece or the beginning of some."""
    return [p for p in pieces if parts is None or any(_within(p, part) for part in parts)]


def check_parts(parts: Sequence[str] | None, groups: Iterable[str], known: Sequence[str]) -> None:
    for part in parts or ():
        if not any(_within(piece, part) for piece in known):
            raise MethodError(f"no part {part!r}; there are {', '.join([*groups, *known])}")


def _within(piece: str, part: str) -> bool:
    return piece == part or piece.startswith(f"{part}/")


def models_there(model_dir: Path, names: Sequence[str]) -> list[str]:
    """Those of the checkpoints that the folder holds."""
    there = [name for name in names if (model_dir / name / "config.json").exists()]
    if not there:
        raise FileError(f"{model_dir} has none of {', '.join(names)}; --model-dir is a folder of checkpoints")
    return there


def seconds_of(fit: Mapping[str, Any]) -> str:
    """How long the fit of a piece took, for a table."""
    return f"{fit['seconds']:.0f}" + (" (resumed)" if fit.get("resumed") else "")


def commits_of(pieces: Iterable[Mapping[str, Any]]) -> list[str]:
    """The commits that some pieces were done at."""
    return sorted({piece["settings"].get("commit", "unknown") for piece in pieces})


def described(settings: Mapping[str, Any]) -> str:
    """The settings of a lens in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def command(section: str, limit: int | None, steps: int | None, seed: int) -> str:
    """The command line that does the same."""
    given = {"limit": limit, "steps": steps, "seed": seed}
    more = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    return f"masklens reproduce {section} --model-dir DIR --data DIR --out DIR{more}"
