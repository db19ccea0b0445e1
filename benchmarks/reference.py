"""Where the reference checkpoints and data sets are: MASKLENS_MODELS, MASKLENS_DATA, or ../shared."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared"


class Missing(Exception):
    """A benchmark cannot run here, and why."""


def checkpoint(name: str) -> Path:
    """The folder of a checkpoint; built once where only its pieces are there."""
    folders = [os.environ.get("MASKLENS_MODELS"), Path(tempfile.gettempdir()) / "masklens-models"]
    for folder in folders:
        if folder and (Path(folder) / name / "config.json").exists():
            return Path(folder) / name
    builder = SHARED / "models" / "build.py"
    if not builder.exists():
        raise Missing(f"no checkpoint {name}: set MASKLENS_MODELS to a folder of reference checkpoints")
    target = Path(str(folders[1]))
    subprocess.run([sys.executable, str(builder), str(target), name], check=True, stdout=subprocess.DEVNULL)
    return target / name


def sst2_dev() -> tuple[list[str], list[int]]:
    """Sentences and labels of SST-2's development set."""
    path = Path(os.environ.get("MASKLENS_DATA") or SHARED / "data") / "sst2" / "dev.tsv"
    if not path.exists():
        raise Missing(f"no {path}: set MASKLENS_DATA to the folder of the data sets")
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [text.strip() for text, _ in rows], [int(label) for _, label in rows]


def agnews_test() -> list[str]:
    """Title and description of the texts in the test set of AG News."""
    path = Path(os.environ.get("MASKLENS_DATA") or SHARED / "data") / "agnews" / "test.csv"
    if not path.exists():
        raise Missing(f"no {path}: set MASKLENS_DATA to the folder of the data sets")
    with path.open(encoding="utf-8", newline="") as file:
        return [f"{title} {description}" for _, title, description in csv.reader(file)]
