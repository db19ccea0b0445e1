"""One function for each file format. It takes a path and yields the cells of the rows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain, count, islice
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

from pydantic import ConfigDict, Field

from ..errors import FileError
from . import FileModel, open_binary, parse, reason
from .parquet import check_whole

STANDARD_INPUT = "-"
LONGEST_CELL = 1 << 27
"""characters of a csv field; Python's own limit is 131,072"""
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}
"""possible separators: the first with which the header has the wanted columns, else the most frequent one"""
NOT_UTF8 = "not valid UTF-8 (if the file is in another encoding, convert it: iconv -f LATIN1 -t UTF-8)"


class Columns(NamedTuple):
    """What to read from a row."""

    texts: tuple[str, ...] = ("text",)
    """one column, or two for pairs"""
    label: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.texts, *([self.label] if self.label else [])]


Record = Mapping[str, Any]
"""the cells of a row by column; a string that is not valid UTF-8 holds lone surrogates"""
Records = Iterator[tuple[int, Record | str]]
"""rows with their numbers: the cells, or the reason why the row cannot be read"""


def records(path: str, columns: Columns, limit: int | None = None) -> Records:
    """The rows of one file, at most `limit`. A row that cannot be read comes with the reason."""
    try:
        yield from islice(reader_of(path)(path, columns), limit)
    except (OSError, EOFError, ValueError) as error:  # pyarrow's errors are ValueErrors
        said = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        raise FileError(f"{path} cannot be read: {said}") from error


def ending_of(path: str) -> str:
    """The ending of a path without .gz: ".jsonl" for x.jsonl and x.jsonl.gz."""
    return PurePosixPath(path[:-3] if _is_packed(path) else path).suffix.lower()


def _is_packed(path: str) -> bool:
    return path.lower().endswith(".gz")


OwnName = Annotated[str, Field(pattern=r"^[^/\\\x00]*[^/\\\x00.][^/\\\x00]*$", max_length=255)]
"""the name of a file in the same folder"""


class Saved(FileModel):
    """The fields that are needed from the description of a data set on disk; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class SavedFile(Saved):
    filename: OwnName


class SavedDataset(Saved):
    """The content of `state.json`."""

    files: list[SavedFile] = Field(alias="_data_files")


class SavedSplits(Saved):
    """The content of `dataset_dict.json`, for a data set with several splits."""

    splits: list[OwnName]


def described(model: Any, path: str) -> Any:
    """The description of a data set, read from the file at `path`; None if there is no such file."""
    try:
        with open_binary(path) as file:
            return parse(model, file.read(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def reader_of(path: str) -> Callable[[str, Columns], Records]:
    if path == STANDARD_INPUT:
        return _jsonl if standard_input().lstrip().startswith(b"{") else _lines_or_csv
    if ending_of(path) in READERS:
        return READERS[ending_of(path)]
    if described(SavedDataset, f"{path}/state.json") is not None:
        return _dataset
    raise FileError(
        f"{path} cannot be read: texts are read from {', '.join(READERS)} files (or .gz of them) and from "
        f"folders that datasets.save_to_disk wrote"
    )


@cache
def standard_input() -> bytes:
    """The bytes of standard input, read once and kept, because texts and labels may both need them."""
    return sys.stdin.buffer.read()


def _open(path: str) -> BinaryIO:
    if path == STANDARD_INPUT:
        return io.BytesIO(standard_input())
    file = open_binary(path)
    return gzip.open(file) if _is_packed(path) else file  # type: ignore[return-value]


def _check_start(start: bytes) -> None:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is not UTF-8 but UTF-16; convert it: iconv -f UTF-16 -t UTF-8")


def is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers. Bytes that are not UTF-8 become lone surrogates."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                _check_start(line)
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").rstrip("\r\n")
            if text.strip():
                yield number, text


def _txt(path: str, columns: Columns) -> Records:
    for number, line in _lines(path):
        yield number, {"text": line}


def _jsonl(path: str, columns: Columns) -> Records:
    for number, line in _lines(path):
        if not is_unicode(line):
            yield number, f"the line is {NOT_UTF8}"
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"the line is not JSON: {error}"
        else:
            yield number, record if isinstance(record, dict) else f"the line is {line[:40]}, not an object"


def _json(path: str, columns: Columns) -> Records:
    """Rows from a list of objects or texts, or from one object per line, as .json files often have them."""
    with _open(path) as file:
        content = file.read()
    _check_start(content)
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is {NOT_UTF8}") from error
    except (ValueError, RecursionError) as error:
        if not _begins_with_object(content):
            raise ValueError(f"it is not JSON: {error}") from error
        yield from _jsonl(path, columns)
        return
    if not isinstance(rows, list):
        raise ValueError("it must hold a list of objects such as {'text': ...}, or of texts")
    for number, row in enumerate(rows, start=1):
        record = {columns.texts[0]: row} if isinstance(row, str) else row
        yield number, record if isinstance(record, dict) else f"the entry is {str(row)[:40]}, not an object"


def _begins_with_object(content: bytes) -> bool:
    """Whether the first line is a complete JSON object."""
    try:
        return isinstance(json.loads(content.lstrip().split(b"\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


def _lines_or_csv(path: str, columns: Columns) -> Records:
    """Rows of standard input, which has no file ending: csv if the first line names the wanted columns."""
    with _open(path) as file:
        header = file.readline().decode("utf-8-sig", "surrogateescape")
    known = [one for one in SEPARATORS[".csv"] if one in header]
    found = any(set(columns.names) <= set(_names(header, one)) for one in known)
    yield from (_csv if found else _txt)(path, columns)


def _csv(path: str, columns: Columns) -> Records:
    """Rows of a csv or tsv file. The separator is found from the header. In tsv files a quotation mark is an
    ordinary character."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    ending = ending_of(path) or ".csv"
    with _open(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        header = text.readline()
        _check_start(header.encode("utf-8", "surrogateescape"))
        separator = _separator(header, columns, SEPARATORS[ending])
        quoting: Literal[0, 3] = csv.QUOTE_NONE if ending == ".tsv" else csv.QUOTE_MINIMAL
        reader = csv.DictReader(chain([header], text), delimiter=separator, quoting=quoting)
        for number in count(1):
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, f"the record is not csv: {error}"
            else:
                yield number, TOO_MANY_CELLS if any(record.pop(None, [])) else record


TOO_MANY_CELLS = "the record has more cells than the header; put texts with separators in quotation marks"


def _separator(header: str, columns: Columns, known: str) -> str:
    found = [one for one in known if set(columns.names) <= set(_names(header, one))]
    return found[0] if found else max(known, key=header.count)


def _names(header: str, separator: str) -> list[str]:
    return [name.strip().strip('"') for name in header.split(separator)]


def _parquet(path: str, columns: Columns) -> Records:
    import pyarrow.parquet as pq

    with _open(path) as handle:
        check_whole(handle)
        with pq.ParquetFile(handle, page_checksum_verification=True) as file:
            there = [name for name in columns.names if name in file.schema_arrow.names]
            batches = file.iter_batches(256, columns=there or None)  # all if none is there, for the message
            yield from _arrow_records(batches)


def _dataset(path: str, columns: Columns) -> Records:
    """Rows of a folder that `datasets.save_to_disk` wrote: Arrow streams named in state.json."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for entry in described(SavedDataset, f"{path}/state.json").files:
            with open_binary(f"{path}/{entry.filename}") as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    there = [one for one in columns.names if one in batch.schema.names]
                    yield batch.select(there) if there else batch

    yield from _arrow_records(batches())


def _arrow_records(batches: Iterator[Any]) -> Records:
    number = 0
    for batch in batches:
        cells = {name: _cells(batch.column(name)) for name in batch.schema.names}
        for i in range(batch.num_rows):
            number += 1
            yield number, {name: values[i] for name, values in cells.items()}


def _cells(column: Any) -> list[Any]:
    """A column's values. Strings are decoded from bytes, because Arrow does not check that they are UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_pylist()
    plain = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values = column.cast(plain).to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]


READERS: dict[str, Callable[[str, Columns], Records]] = {
    ".txt": _txt,
    ".csv": _csv,
    ".tsv": _csv,
    ".json": _json,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
