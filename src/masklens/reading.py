"""Read texts from files: txt (one a line), csv, tsv, json, jsonl, parquet, and data sets on disk.

All but data sets may be compressed (.gz); a path, a URL or a pattern of them names the files, and "-" is
standard input (jsonl if it begins with an object, csv if its first line names the columns, else txt). Blank
lines are no rows. A row that holds no text has a reason: a corpus run sets such a row aside, every other
command stops at the first.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from glob import glob
from itertools import chain, count, islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple, NoReturn

from pydantic import ConfigDict, Field

from .checks import did_you_mean
from .errors import FileError
from .files import FileModel, file_system, is_url, open_binary, parse, reason

if TYPE_CHECKING:
    from .attribution import Text

STANDARD_INPUT = "-"
LONGEST_CELL = 1 << 27
"""characters of a csv field; Python's own limit is 131,072"""
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}
"""the first that makes the wanted columns appear in the header is taken, else the most frequent there"""


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
Records = Iterator[tuple[int, Record | str]]
"""rows with their numbers: the cells, or the reason why there are none"""


def read_texts(pattern: str, columns: Sequence[str] = ("text",), limit: int | None = None) -> list[Text]:
    """Return the texts in a file, or in all files that match a pattern, in the order of their names.

    One column gives strings, two columns give pairs. At most `limit` texts are read.
    """
    wanted = check_columns(columns)
    rows = (_usable(row, file) for file in find_files(pattern) for row in read_rows(file, wanted, limit))
    texts = list(islice(rows, limit))
    if not texts:
        raise FileError(f"there is no text in {pattern}; give a file with at least one")
    return texts


def read_labels(pattern: str, column: str, limit: int | None = None) -> list[Any]:
    """Return the gold labels in a column of what `read_texts` reads: names, ids, or lists of answers."""
    found = chain.from_iterable(_labels(file, column) for file in find_files(pattern))
    return list(islice(found, limit))


def check_columns(columns: Sequence[str], label: str | None = None) -> Columns:
    if not 1 <= len(columns) <= 2:
        raise FileError(
            f"{len(columns)} columns were given ({', '.join(columns)}); give one, or two for pairs of texts"
        )
    return Columns(tuple(columns), label)


def _usable(row: Row, file: str) -> Text:
    if row.text is None:
        _refuse(row.number, file, str(row.reason))
    return row.text


def _refuse(number: int, file: str, problem: str) -> NoReturn:
    hint = "" if NAME_ONE in problem or problem.endswith(NOT_UTF8) else ". Fix or remove it"
    raise FileError(f"row {number} of {file} cannot be used: {problem}{hint}")


def _labels(file: str, column: str) -> Iterator[Any]:
    for number, record in records(file, Columns((column,))):
        if isinstance(record, str):
            _refuse(number, file, record)
        problem = _label_problem(record, column)
        if problem or record[column] is None:
            _refuse(number, file, problem or f"column {column!r} is null, and must hold a label")
        yield record[column]


def find_files(pattern: str) -> list[str]:
    """The files, and data sets on disk, that match a path, a URL or a pattern of them, in order."""
    if pattern == STANDARD_INPUT:
        return [pattern]
    try:
        files = [file for path in _matches(pattern) for file in _expand(path)]
    except OSError as error:
        raise FileError(f"cannot look for {pattern}: {reason(error)}") from error
    if not files:
        raise FileError(
            f"nothing matches {pattern}; give a file ({', '.join(READERS)}), a data set on disk, or a pattern"
        )
    for file in files:
        _reader(file)
    return files


def _matches(pattern: str) -> list[str]:
    if not is_url(pattern):
        return [pattern] if Path(pattern).exists() else sorted(glob(pattern, recursive=True))
    fs, name = file_system(pattern)
    names = [name] if fs.exists(name) else sorted(fs.glob(name))
    return [fs.unstrip_protocol(one) for one in names]


def _expand(path: str) -> list[str]:
    """A data set on disk with several splits gives one entry a split."""
    listed = None if _ending(path) in READERS else _described(SavedSplits, f"{path}/dataset_dict.json")
    return [path] if listed is None else [f"{path}/{split}" for split in listed.splits]


def _ending(path: str) -> str:
    """Such as .jsonl, also of x.jsonl.gz."""
    return PurePosixPath(path[:-3] if _is_packed(path) else path).suffix.lower()


def _is_packed(path: str) -> bool:
    return path.lower().endswith(".gz")


OwnName = Annotated[str, Field(pattern=r"^[^/\\\x00]*[^/\\\x00.][^/\\\x00]*$", max_length=255)]
"""the name of a file in the same folder"""


class Saved(FileModel):
    """A part of what a data set on disk says of itself; the other fields are left out."""

    model_config = ConfigDict(extra="ignore")


class SavedFile(Saved):
    filename: OwnName


class SavedDataset(Saved):
    """`state.json`."""

    files: list[SavedFile] = Field(alias="_data_files")


class SavedSplits(Saved):
    """`dataset_dict.json`, where there are several splits."""

    splits: list[OwnName]


def _described(model: Any, path: str) -> Any:
    """A data set's description of itself; None if there is none."""
    try:
        with open_binary(path) as file:
            return parse(model, file.read(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _reader(path: str) -> Callable[[str, Columns], Records]:
    if path == STANDARD_INPUT:
        return _jsonl if _standard_input().lstrip().startswith(b"{") else _lines_or_csv
    if _ending(path) in READERS:
        return READERS[_ending(path)]
    if _described(SavedDataset, f"{path}/state.json") is not None:
        return _dataset
    raise FileError(
        f"{path} cannot be read: texts are read from {', '.join(READERS)} files (or .gz of them) and from "
        f"folders that datasets.save_to_disk wrote"
    )


@cache
def _standard_input() -> bytes:
    """Read once, for texts and labels may both be asked for."""
    return sys.stdin.buffer.read()


def _open(path: str) -> BinaryIO:
    if path == STANDARD_INPUT:
        return io.BytesIO(_standard_input())
    file = open_binary(path)
    return gzip.open(file) if _is_packed(path) else file  # type: ignore[return-value]


def records(path: str, columns: Columns, limit: int | None = None) -> Records:
    """The rows of one file, at most `limit`; those that are no records come with the reason."""
    try:
        yield from islice(_reader(path)(path, columns), limit)
    except (OSError, EOFError, ValueError) as error:  # pyarrow's errors are ValueErrors
        said = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        raise FileError(f"{path} cannot be read: {said}") from error


def read_rows(path: str, columns: Columns, limit: int | None = None) -> Iterator[Row]:
    """The rows of one file, at most `limit`: each has a text or the reason why not."""
    for number, record in records(path, columns, limit):
        if isinstance(record, str):
            yield Row(number, None, reason=record)
        else:
            yield _row(number, record, columns)


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
    problems = [_problem(record, name) for name in columns.texts]
    problems += [_label_problem(record, columns.label)] if columns.label else []
    wrong = next(filter(None, problems), None)
    if wrong:
        return Row(number, None, reason=wrong)
    cells = [record[name] for name in columns.texts]
    label = record[columns.label] if columns.label else None
    text = cells[0] if len(cells) == 1 else (cells[0], cells[1])
    return Row(number, text, None if label is None else str(label))


def _problem(record: Record, name: str) -> str | None:
    """Why a cell is not a text; None if it is one."""
    if name not in record:
        return _no_column(record, name, "--column")
    value = record[name]
    if value is None:
        return f"column {name!r} is null"
    if not isinstance(value, str):
        return f"column {name!r} holds {value!r:.60}, not a string"
    if not value.strip():
        return f"column {name!r} is empty"
    return None if _is_unicode(value) else f"column {name!r} is {NOT_UTF8}"


def _label_problem(record: Record, name: str) -> str | None:
    """Why a cell cannot be a label; None if it can."""
    if name not in record:
        return _no_column(record, name, "--label-column")
    return None if _is_unicode(str(record[name])) else f"column {name!r} is {NOT_UTF8}"


def _no_column(record: Record, name: str, option: str) -> str:
    there = ", ".join(map(repr, record))[:200]
    return f"no column {name!r}; there are {there}{NAME_ONE} {option}{did_you_mean(name, record)}"


NAME_ONE = ": name one with"
NOT_UTF8 = "not valid UTF-8 (if the file is in another encoding, convert it: iconv -f LATIN1 -t UTF-8)"


def _check_start(start: bytes) -> None:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is not UTF-8 but UTF-16; convert it: iconv -f UTF-16 -t UTF-8")


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers; what is not UTF-8 becomes lone surrogates."""
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
        if not _is_unicode(line):
            yield number, f"the line is {NOT_UTF8}"
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"the line is not JSON: {error}"
        else:
            yield number, record if isinstance(record, dict) else f"the line is {line[:40]}, not an object"


def _json(path: str, columns: Columns) -> Records:
    """A list of objects, or of texts; or one object a line, as data sets are often written to .json."""
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
    """Whether the first line is a whole object of JSON."""
    try:
        return isinstance(json.loads(content.lstrip().split(b"\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


def _lines_or_csv(path: str, columns: Columns) -> Records:
    """Standard input, which has no ending: csv where the first line has the columns that are asked for."""
    with _open(path) as file:
        header = file.readline().decode("utf-8-sig", "surrogateescape")
    known = [one for one in SEPARATORS[".csv"] if one in header]
    found = any(set(columns.names) <= set(_names(header, one)) for one in known)
    yield from (_csv if found else _txt)(path, columns)


def _csv(path: str, columns: Columns) -> Records:
    """The separator is the one that the header has between the columns that are asked for. Tabs come without
    quotes: a quotation mark there is a character of the text."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    ending = _ending(path) or ".csv"
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

    with _open(path) as handle, pq.ParquetFile(handle, page_checksum_verification=True) as file:
        there = [name for name in columns.names if name in file.schema_arrow.names]
        batches = file.iter_batches(256, columns=there or None)  # all, to say what there is
        yield from _arrow_records(batches)


def _dataset(path: str, columns: Columns) -> Records:
    """A folder that `datasets.save_to_disk` wrote: Arrow streams named in state.json."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for entry in _described(SavedDataset, f"{path}/state.json").files:
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
    """A column's values; strings go through bytes, for Arrow does not check that they are UTF-8."""
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
