"""The files of a corpus run: Parquet shards, rejected rows, and reading both back.

A shard has the columns that `masklens.save` writes, so that `masklens.load` reads it, and two more: the
row's id and its label.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..attribution import Attribution, from_row, schema
from ..errors import CorpusError
from ..files.parquet import check_whole, to_parquet
from ..model.batch import Batch
from ..records.verification import Verification, verification_record
from .job import DATA, MANIFEST, REJECTS, read_manifest
from .storage import Folder

ALL_REJECTS = "rejects.jsonl"

SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string()),
        *schema(pa),
        pa.field("label", pa.string()),
    ]
)


class Place(NamedTuple):
    """Which part of the corpus a shard holds: the number of its file, and its number within the file."""

    file: int
    chunk: int

    @property
    def name(self) -> str:
        return f"part-{self.file:05d}-{self.chunk:06d}"


class Reject(NamedTuple):
    """A row that was not explained."""

    row_id: str
    reason: str


def row_id(file: str, number: int) -> str:
    """A row's id: its file as the input names it, and its number there."""
    return f"{file}:{number}".encode("utf-8", "backslashreplace").decode()


def columns_of(
    batch: Batch, sites: Sequence[int], scores: np.ndarray, proofs: Sequence[Verification]
) -> dict[str, Any]:
    """The columns of a shard that come from scores (examples, sites, tokens) and verifications."""
    valid = batch.valid.cpu().numpy()
    count, lengths = len(valid), valid.sum(1)
    ends = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32())
    everywhere = np.broadcast_to(valid[:, None], scores.shape)
    per_site = np.concatenate([[0], np.repeat(lengths, len(sites)).cumsum()])
    inner = pa.ListArray.from_arrays(pa.array(per_site, pa.int32()), pa.array(scores[everywhere]))
    places = pa.array(np.arange(count + 1) * len(sites), pa.int32())
    return {
        "text": pa.array(
            [[t] if isinstance(t, str) else list(t) for t in batch.texts], SCHEMA.field("text").type
        ),
        "tokens": pa.ListArray.from_arrays(ends, pa.array(list(chain.from_iterable(batch.tokens)))),
        "offsets": pa.ListArray.from_arrays(ends, _pairs(batch.offsets)),
        "special": pa.ListArray.from_arrays(ends, pa.array(batch.special.cpu().numpy()[valid])),
        "segments": pa.ListArray.from_arrays(
            ends, pa.array(batch.segments.cpu().numpy()[valid].astype(np.int32))
        ),
        "sites": pa.ListArray.from_arrays(places, pa.array(np.tile(sites, count).astype(np.int32))),
        "scores": pa.ListArray.from_arrays(places, inner),
        "verification": _verification(proofs, count),
    }


def _pairs(offsets: Iterable[Sequence[tuple[int, int]]]) -> pa.ListArray:
    """The offsets of all texts, one after the other."""
    numbers = chain.from_iterable(chain.from_iterable(offsets))
    found = pa.array(np.fromiter(numbers, dtype=np.int32))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(found) + 1, 2, dtype=np.int32)), found)


def _verification(proofs: Sequence[Verification], count: int) -> pa.Array:
    rows: list[Any] = [verification_record(proof) for proof in proofs]
    return pa.array(rows or [None] * count, SCHEMA.field("verification").type)


def table_of(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def write_shard(folder: Folder, place: Place, table: pa.Table, rejects: Sequence[Reject]) -> None:
    """Write a part of the corpus. The shard is written last: if it exists, its rejects do too."""
    if not folder.holds(MANIFEST):
        raise CorpusError(f"{folder.url} was removed while a run was writing to it; start the command again")
    name = f"{REJECTS}/{place.name}.jsonl"
    if rejects:
        lines = "".join(json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in rejects)
        folder.write(name, lines.encode("utf-8", "backslashreplace"))
    else:
        folder.remove(name)
    folder.write(f"{DATA}/{place.name}.parquet", to_parquet(table))


def finished(folder: Folder) -> set[str]:
    """The names of the parts whose shards are complete."""
    names = [name for name in folder.names(DATA) if name.endswith(".parquet")]
    return {name.removesuffix(".parquet") for name in names if _is_whole(folder, f"{DATA}/{name}")}


def _is_whole(folder: Folder, name: str) -> bool:
    """Whether a shard is complete: a Parquet file ends with its magic bytes, which are written last."""
    with folder.open(name) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 4))
        return size > 8 and file.read(4) == b"PAR1"


class Totals(NamedTuple):
    """How many rows a run has written and rejected."""

    explained: int
    rejected: int
    shards: int


def totals(folder: Folder, expected: set[str]) -> Totals:
    """Count the rows and join the rejects into one file. Missing or extra parts are an error."""
    if not expected:
        raise CorpusError("the input has no rows; give files with at least one")
    found = finished(folder)
    for names, are in ((expected - found, "missing"), (found - expected, "there that are not of this run")):
        if names:
            raise CorpusError(
                f"{len(names)} of {len(expected)} shards are {are}, such as {min(names)} in {folder.url}; "
                f"start the same command again, or use another folder"
            )
    explained = sum(_rows_in(folder, f"{DATA}/{name}.parquet") for name in found)
    parts = [folder.read(f"{REJECTS}/{name}.jsonl") or b"" for name in sorted(found)]
    folder.write(ALL_REJECTS, b"".join(parts))
    rejected = sum(part.count(b"\n") for part in parts)
    if rejected and not explained:
        first = b"".join(parts).splitlines()[0].decode()
        raise CorpusError(f"none of the {rejected} rows could be explained; the first: {first}")
    return Totals(explained, rejected, len(found))


def _rows_in(folder: Folder, name: str) -> int:
    with folder.open(name) as file, _told(folder, name):
        check_whole(file)
        return pq.read_metadata(file).num_rows


@contextmanager
def _told(folder: Folder, name: str) -> Iterator[None]:
    """Turn a failure to read a shard into an error that names the shard."""
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise CorpusError(
            f"the shard {folder.path(name)} is damaged ({' '.join(str(error).split())[:100]}); remove it and "
            f"start the same command again"
        ) from error


def is_corpus(path: str) -> bool:
    """Whether a folder or URL holds a corpus run."""
    return Folder(path).holds(MANIFEST)


def corpus_runs(paths: Sequence[str], alone: bool) -> dict[str, str]:
    """The paths that hold corpus runs, by name. Corpus runs cannot be mixed with other attributions."""
    runs = [path.rstrip("/") for path in paths if is_corpus(path)]
    if runs and (len(runs) < len(paths) or not alone):
        raise CorpusError("corpus runs are evaluated by themselves: leave out texts and other attributions")
    names = [path.rsplit("/", 1)[-1] for path in runs]
    return dict(zip(names if len(set(names)) == len(names) else runs, runs, strict=True))


class Explained(NamedTuple):
    """An explained row of a corpus."""

    place: tuple[int, int]
    """the number of its file and its number in the file, by which rows are ordered"""
    row_id: str
    attribution: Attribution
    label: str | None


SHARD = re.compile(r"part-(\d{5,})-(\d{6,})\.parquet")
ROW_ID = re.compile(r".*:(\d{1,18})", re.DOTALL)


def read_back(url: str) -> Iterator[Explained]:
    """Everything that a run wrote, in the order of the corpus, a few rows in memory at a time."""
    folder = Folder(url)
    for name in _shard_names(folder):
        match = SHARD.fullmatch(name)
        if match is None:
            raise CorpusError(f"{folder.path(DATA)} holds {name}, which is not a shard; remove it")
        for row in _shard_rows(folder, f"{DATA}/{name}"):
            yield _explained(int(match[1]), row, f"a row of {folder.path(DATA)}/{name}")


def _shard_names(folder: Folder) -> list[str]:
    """The names of a run's shards. Missing shards are an error. A run that has not ended gets a warning."""
    made = read_manifest(folder)
    if made is None:
        raise CorpusError(f"{folder.url} does not hold a corpus run: there is no {MANIFEST}")
    names = folder.names(DATA)
    if made.shards is None:
        warnings.warn(f"the run in {folder.url} has not ended; {len(names)} shards are read", stacklevel=4)
    elif made.shards != len(names):
        raise CorpusError(
            f"{folder.url} holds {len(names)} shards, and {made.shards} were written; start the same command "
            f"again to make them anew"
        )
    return names


def _shard_rows(folder: Folder, name: str) -> Iterator[dict[str, Any]]:
    with folder.open(name) as handle, _told(folder, name):
        check_whole(handle)
        file = pq.ParquetFile(handle, page_checksum_verification=True)
        if missing := set(SCHEMA.names) - set(file.schema_arrow.names):
            raise ValueError(f"there is no column {min(missing)!r}")
        for batch in file.iter_batches(256):
            yield from batch.to_pylist()


def _explained(file: int, row: dict[str, Any], where: str) -> Explained:
    name, label = row["row_id"], row["label"]
    number = ROW_ID.fullmatch(name) if isinstance(name, str) else None
    if number is None or not isinstance(label, str | None):
        raise CorpusError(f"{where} is damaged: its id is {name!r:.60} and its label {label!r:.60}")
    return Explained((file, int(number[1])), name, from_row(row, where), label)
