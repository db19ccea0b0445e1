"""Read texts from files: txt (one text per line), csv, tsv, json, jsonl, parquet, and data sets on disk.

All but data sets may be compressed (.gz). A path, a URL or a pattern names the files. "-" is standard input:
jsonl if it begins with an object, csv if its first line names the columns, else txt. Blank lines are skipped.
A row without a usable text comes with the reason. A corpus run sets such rows aside; every other command
stops at the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from glob import glob
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..errors import FileError, did_you_mean
from . import file_system, is_url, reason
from .formats import (
    NOT_UTF8,
    READERS,
    STANDARD_INPUT,
    Columns,
    Record,
    SavedSplits,
    described,
    ending_of,
    is_unicode,
    reader_of,
    records,
)

if TYPE_CHECKING:
    from ..attribution import Text


class Row(NamedTuple):
    """A row of a file: a text, or the reason why there is none."""

    number: int
    """its number in the file, from 1: the line of a jsonl or txt file, the record of other files"""
    text: Text | None
    label: str | None = None
    reason: str | None = None


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


def check_columns(columns: Sequence[str]) -> Columns:
    if not 1 <= len(columns) <= 2:
        raise FileError(
            f"{len(columns)} columns were given ({', '.join(columns)}); give one, or two for pairs of texts"
        )
    return Columns(tuple(columns))


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
        reader_of(file)
    return files


def _matches(pattern: str) -> list[str]:
    if not is_url(pattern):
        return [pattern] if Path(pattern).exists() else sorted(glob(pattern, recursive=True))
    fs, name = file_system(pattern)
    names = [name] if fs.exists(name) else sorted(fs.glob(name))
    return [fs.unstrip_protocol(one) for one in names]


def _expand(path: str) -> list[str]:
    """The path itself, or for a data set on disk with several splits one path per split."""
    listed = None if ending_of(path) in READERS else described(SavedSplits, f"{path}/dataset_dict.json")
    return [path] if listed is None else [f"{path}/{split}" for split in listed.splits]


def read_rows(path: str, columns: Columns, limit: int | None = None) -> Iterator[Row]:
    """The rows of one file, at most `limit`. Each has a text, or the reason why it has none."""
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
    return None if is_unicode(value) else f"column {name!r} is {NOT_UTF8}"


def _label_problem(record: Record, name: str) -> str | None:
    """Why a cell cannot be a label; None if it can."""
    if name not in record:
        return _no_column(record, name, "--label-column")
    return None if is_unicode(str(record[name])) else f"column {name!r} is {NOT_UTF8}"


def _no_column(record: Record, name: str, option: str) -> str:
    there = ", ".join(map(repr, record))[:200]
    return f"no column {name!r}; there are {there}{NAME_ONE} {option}{did_you_mean(name, record)}"


NAME_ONE = ": name one with"
