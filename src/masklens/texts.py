"""Read texts from files: txt (one a line), csv, jsonl and parquet (one or two columns)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import FileError

if TYPE_CHECKING:
    from .attribution import Text

Row = dict[str, Any]


def read_texts(pattern: str, columns: Sequence[str] = ("text",), limit: int | None = None) -> list[Text]:
    """Return the texts in a file, or in all files that match a pattern, in the order of their names.

    One column gives strings, two columns give pairs. At most `limit` texts are read.
    """
    if not 1 <= len(columns) <= 2:
        raise FileError(
            f"{len(columns)} columns were given ({', '.join(columns)}); give one, or two for pairs of texts"
        )
    paths = sorted(Path(path) for path in glob(pattern, recursive=True)) or [Path(pattern)]
    texts = list(islice(chain.from_iterable(_texts(path, columns) for path in paths), limit))
    if not texts:
        raise FileError(f"there is no text in {pattern}; give a file with at least one")
    return texts


def read_labels(pattern: str, column: str, limit: int | None = None) -> list[Any]:
    """Return the gold labels in a column of what `read_texts` reads: names, ids, or lists of answers."""
    paths = sorted(Path(path) for path in glob(pattern, recursive=True)) or [Path(pattern)]
    return list(islice(chain.from_iterable(_labels(path, column) for path in paths), limit))


def _labels(path: Path, column: str) -> Iterator[Any]:
    for number, row in enumerate(_rows(path), start=1):
        _check_column(row, column, f"row {number} of {path}")
        yield row[column]


def _texts(path: Path, columns: Sequence[str]) -> Iterator[Text]:
    for number, row in enumerate(_rows(path), start=1):
        values = [_cell(row, column, f"row {number} of {path}") for column in columns]
        yield values[0] if len(values) == 1 else (values[0], values[1])


def _check_column(row: Row, column: str, where: str) -> None:
    if column not in row:
        raise FileError(
            f"{where} has no column {column!r}; it has {', '.join(map(repr, row))}: name one with --column, "
            f"or two for a pair"
        )


def _cell(row: Row, column: str, where: str) -> str:
    _check_column(row, column, where)
    if not isinstance(row[column], str):
        raise FileError(f"{where} holds {row[column]!r} in column {column!r}; it must hold a string")
    return row[column]


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix not in READERS:
        raise FileError(f"{path} has the ending {path.suffix!r}; texts are read from {', '.join(READERS)}")
    try:
        yield from READERS[path.suffix](path)
    except (OSError, ValueError, csv.Error) as error:
        raise FileError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _txt(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        yield from ({"text": line.rstrip("\n")} for line in lines if line.strip())


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for line in filter(str.strip, lines):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a line must be an object such as {{'text': ...}}, not {line.strip()[:40]}")
            yield row


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1024):
            yield from batch.to_pylist()


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".txt": _txt,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
