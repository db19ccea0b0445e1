"""The movie reviews of ERASER (DeYoung et al. 2020), with the spans that people marked as reasons."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from masklens.errors import FileError
from masklens.words import Span


@dataclass(frozen=True)
class Rationale:
    """A text, its label and the parts of it that people gave as the reason."""

    text: str
    label: str
    spans: tuple[Span, ...]
    """characters, the end not included"""


def read_movies(archive: str | os.PathLike[str], split: str = "test") -> list[Rationale]:
    """The movie reviews of ERASER with their rationales, from its archive (.tar, compressed or not)."""
    path = Path(archive)
    if not path.exists():
        raise FileError(f"no file {path}; give the archive of ERASER's movie reviews")
    with tarfile.open(path) as tar:
        names = {Path(name).name: name for name in tar.getnames()}
        if f"{split}.jsonl" not in names:
            raise FileError(f"{path} has no {split}.jsonl; there are the splits train, val and test")
        rows = [json.loads(line) for line in _lines(tar, names[f"{split}.jsonl"])]
        wanted = {row["annotation_id"] for row in rows}
        documents = {Path(n).name: n for n in tar.getnames() if Path(n).parent.name == "docs"}
        texts = {name: "".join(_lines(tar, documents[name])) for name in documents if name in wanted}
    return [_rationale(row, texts[row["annotation_id"]]) for row in rows]


def _lines(tar: tarfile.TarFile, name: str) -> Iterator[str]:
    file = tar.extractfile(name)
    if file is not None:
        yield from io.TextIOWrapper(file, encoding="utf-8")


def _rationale(row: dict, document: str) -> Rationale:
    """ERASER counts words; the text is the words with one space between them. Empty pieces are left out."""
    words = document.split()
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    starts = ends - [len(word) for word in words]
    pieces = [p for group in row["evidences"] for p in group if p["start_token"] < p["end_token"]]
    spans = sorted((int(starts[p["start_token"]]), int(ends[p["end_token"] - 1])) for p in pieces)
    return Rationale(" ".join(words), row["classification"], tuple(spans))
