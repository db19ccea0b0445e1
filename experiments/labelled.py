"""Labelled texts of the Decoded Grad-CAM paper: SST-2 and AG News, as the data folder has them."""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from masklens.errors import FileError


class Labelled(NamedTuple):
    """Texts and the ids of their classes."""

    texts: list[str]
    labels: list[int]

    def first(self, count: int | None) -> Labelled:
        return Labelled(self.texts[:count], self.labels[:count])

    def sample(self, count: int, seed: int) -> Labelled:
        """So many of them, drawn without replacement."""
        chosen = np.random.default_rng(seed).permutation(len(self.texts))[:count]
        return Labelled([self.texts[i] for i in chosen], [self.labels[i] for i in chosen])


def read_test(data: Path, dataset: str) -> Labelled:
    """SST-2's 872 development sentences or AG News's 7,600 test texts (title and description)."""
    if dataset == "sst2":
        return _sst2(data / "sst2" / "dev.tsv")
    with _opened(data / "agnews" / "test.csv") as lines:
        rows = [(f"{title} {text}", int(label) - 1) for label, title, text in csv.reader(lines)]
    return Labelled([text for text, _ in rows], [label for _, label in rows])


def read_train(data: Path, dataset: str) -> Labelled:
    """The training texts that the data folder has."""
    if dataset == "sst2":
        return _sst2(data / "sst2" / "train.tsv.xz")
    with _opened(data / "agnews" / "train_subset.csv.xz") as lines:
        rows = [(row["text"], int(row["label"]) - 1) for row in csv.DictReader(lines)]
    return Labelled([text for text, _ in rows], [label for _, label in rows])


def _sst2(path: Path) -> Labelled:
    with _opened(path) as lines:
        next(lines)
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in lines]
    return Labelled([text.strip() for text, _ in rows], [int(label) for _, label in rows])


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if not path.exists():
        raise FileError(f"no file {path}; --data is the folder that holds sst2/ and agnews/")
    if path.suffix == ".xz":
        with lzma.open(path, "rt", encoding="utf-8", newline="") as lines:
            yield lines
    else:
        with path.open(encoding="utf-8", newline="") as lines:
            yield lines
