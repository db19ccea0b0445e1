"""Read a corpus row by row: jsonl, csv, parquet, txt, and Hugging Face data sets on disk, by path or URL.

A row that cannot be used comes with the reason; only a file that cannot be read at all is an error.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..attribution import Text
from ..errors import FileError
from .storage import is_url, open_binary


class Row(NamedTuple):
    """A row of a file: a text, or the reason why there is none."""

    number: int
    """in its file, from 1: the line of a jsonl or txt file, the record of the others"""
    text: Text | None
    label: str | None = None
    reason: str | None = None


class Columns(NamedTuple):
    """What to read from a row."""

    texts: tuple[str, ...] = ("text",)
    """one column, or two for pairs"""
    label: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.texts, *([self.label] if self.label else [])]


Record = Mapping[str, Any]
"""a row's cells by column; a string that was not UTF-8 holds lone surrogates"""


def find_files(pattern: str) -> list[str]:
    """The files, and data sets on disk, that match a path, a URL or a pattern of them, in order."""
    found = _matches(pattern)
    files = [file for path in found for file in _expand(path)]
    if not files:
        raise FileError(f"nothing matches {pattern}; give a file, a data set on disk, or a pattern of them")
    for file in files:
        _reader(file)
    return files


def _matches(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob(pattern, recursive=True)) or ([pattern] if Path(pattern).exists() else [])
    import fsspec

    fs, name = fsspec.core.url_to_fs(pattern)
    names = [name] if fs.exists(name) else sorted(fs.glob(name))
    return [fs.unstrip_protocol(one) for one in names]


def _expand(path: str) -> list[str]:
    """A data set on disk with several splits gives one entry a split."""
    if _suffix(path) in READERS:
        return [path]
    splits = _json_file(f"{path}/dataset_dict.json")
    return [f"{path}/{_plain_name(split, path)}" for split in splits["splits"]] if splits else [path]


def _suffix(path: str) -> str:
    return Path(path).suffix


def _json_file(path: str) -> Any:
    try:
        with open_binary(path) as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _plain_name(name: str, path: str) -> str:
    """A file name that was read from data: it must not lead anywhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\\" in name:
        raise FileError(f"{path} names the file {name!r}; a data set's files lie in its own folder")
    return name


def _reader(path: str) -> Callable[[str, Columns], Iterator[tuple[int, Record | str]]]:
    if _suffix(path) in READERS:
        return READERS[_suffix(path)]
    if _json_file(f"{path}/state.json") is not None:
        return _dataset
    raise FileError(
        f"{path} cannot be read: texts are read from {', '.join(READERS)} files and from folders that "
        f"datasets.save_to_disk wrote"
    )


def read_rows(path: str, columns: Columns, limit: int | None = None) -> Iterator[Row]:
    """The rows of one file, at most `limit`."""
    try:
        for number, record in islice(_reader(path)(path, columns), limit):
            if isinstance(record, str):
                yield Row(number, None, reason=record)
            else:
                yield _row(number, record, columns)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise FileError(f"{path} cannot be read: {error}") from error


def chunks(path: str, columns: Columns, size: int, limit: int | None = None) -> Iterator[list[Row]]:
    """The rows of one file, `size` at a time."""
    rows = read_rows(path, columns, limit)
    while some := list(islice(rows, size)):
        yield some


def limits(files: Sequence[str], columns: Columns, limit: int | None) -> list[int | None]:
    """How many rows of each file are used, so that there are at most `limit` in all."""
    if limit is None:
        return [None] * len(files)
    shares: list[int | None] = []
    for file in files:
        count = sum(1 for _ in read_rows(file, columns, limit)) if limit else 0
        shares.append(count)
        limit -= count
    return shares


def _row(number: int, record: Record, columns: Columns) -> Row:
    cells = []
    for name in columns.texts:
        problem = _problem(record, name)
        if problem:
            return Row(number, None, reason=problem)
        cells.append(record[name])
    label = record.get(columns.label) if columns.label else None
    text = cells[0] if len(cells) == 1 else (cells[0], cells[1])
    return Row(number, text, None if label is None else str(label))


def _problem(record: Record, name: str) -> str | None:
    """Why a cell is not a text; None if it is one."""
    if name not in record:
        return f"no column {name!r}; there are {', '.join(map(repr, record))}"[:200]
    value = record[name]
    if value is None:
        return f"column {name!r} is null"
    if not isinstance(value, str):
        return f"column {name!r} holds {value!r:.60}, not a string"
    if not value.strip():
        return f"column {name!r} is empty"
    return None if _is_unicode(value) else f"column {name!r} is not valid UTF-8"


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers; what is not UTF-8 becomes lone surrogates."""
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").rstrip("\r\n")
            if text.strip():
                yield number, text


def _txt(path: str, columns: Columns) -> Iterator[tuple[int, Record | str]]:
    for number, line in _lines(path):
        yield number, {"text": line}


def _jsonl(path: str, columns: Columns) -> Iterator[tuple[int, Record | str]]:
    for number, line in _lines(path):
        if not _is_unicode(line):
            yield number, "the line is not valid UTF-8"
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"the line is not JSON: {error}"
        else:
            yield number, record if isinstance(record, dict) else f"the line is {line[:40]}, not an object"


def _csv(path: str, columns: Columns) -> Iterator[tuple[int, Record | str]]:
    with open_binary(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader, number = csv.DictReader(text), 0
        while True:
            number += 1
            try:
                yield number, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, f"the record is not csv: {error}"


def _parquet(path: str, columns: Columns) -> Iterator[tuple[int, Record | str]]:
    import pyarrow.parquet as pq

    with open_binary(path) as handle, pq.ParquetFile(handle) as file:
        there = [name for name in columns.names if name in file.schema_arrow.names]
        batches = file.iter_batches(1024, columns=there or None)  # all, to say what there is
        yield from _records(batches)


def _dataset(path: str, columns: Columns) -> Iterator[tuple[int, Record | str]]:
    """A folder that `datasets.save_to_disk` wrote: Arrow streams named in state.json."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for entry in _json_file(f"{path}/state.json")["_data_files"]:
            name = _plain_name(entry["filename"], path)
            with open_binary(f"{path}/{name}") as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    there = [one for one in columns.names if one in batch.schema.names]
                    yield batch.select(there) if there else batch

    yield from _records(batches())


def _records(batches: Iterator[Any]) -> Iterator[tuple[int, Record | str]]:
    number = 0
    for batch in batches:
        cells = {name: _cells(batch.column(name)) for name in batch.schema.names}
        for i in range(batch.num_rows):
            number += 1
            yield number, {name: values[i] for name, values in cells.items()}


def _cells(column: Any) -> list[Any]:
    """A column's values; strings go through bytes, for Arrow does not check that they are UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_pylist()
    plain = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values = column.cast(plain).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]


READERS: dict[str, Callable[[str, Columns], Iterator[tuple[int, Record | str]]]] = {
    ".txt": _txt,
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
