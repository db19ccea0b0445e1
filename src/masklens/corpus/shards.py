"""The files of a corpus run: Parquet shards, rejected rows, and reading both back.

A shard has the columns that `masklens.save` writes, so that `masklens.load` reads it, and three more: the
row's id, its label and its verification.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..attribution import Attribution, from_row, schema
from ..encoding import Batch
from ..errors import CorpusError
from .job import DATA, MANIFEST
from .storage import Folder

REJECTS, ALL_REJECTS = "rejects", "rejects.jsonl"

VERIFICATION = pa.struct(
    {"divergence": pa.float32(), "prediction_kept": pa.bool_(), "share_removed": pa.float32()}
)
SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string()),
        *schema(pa),
        pa.field("label", pa.string()),
        pa.field("verification", VERIFICATION),
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


class Proof(NamedTuple):
    """The verification of a batch; each (examples,)."""

    divergence: np.ndarray
    prediction_kept: np.ndarray
    share_removed: np.ndarray


def row_id(file: str, number: int) -> str:
    """A row's id: its file as the input names it, and its number there."""
    return f"{file}:{number}".encode("utf-8", "backslashreplace").decode()


def columns_of(batch: Batch, sites: Sequence[int], scores: np.ndarray, proof: Proof | None) -> dict[str, Any]:
    """The columns that come from arrays: scores (examples, sites, tokens) without padding."""
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
        "tokens": pa.array(batch.tokens, SCHEMA.field("tokens").type),
        "offsets": pa.array(batch.offsets, SCHEMA.field("offsets").type),
        "special": pa.ListArray.from_arrays(ends, pa.array(batch.special.cpu().numpy()[valid])),
        "segments": pa.ListArray.from_arrays(
            ends, pa.array(batch.segments.cpu().numpy()[valid].astype(np.int32))
        ),
        "sites": pa.ListArray.from_arrays(places, pa.array(np.tile(sites, count).astype(np.int32))),
        "scores": pa.ListArray.from_arrays(places, inner),
        "verification": _verification(proof, count),
    }


def _verification(proof: Proof | None, count: int) -> pa.Array:
    if proof is None:
        return pa.nulls(count, VERIFICATION)
    arrays = [pa.array(value, field.type) for value, field in zip(proof, VERIFICATION, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(VERIFICATION))


def table_of(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def write_shard(folder: Folder, place: Place, table: pa.Table, rejects: Sequence[Reject]) -> None:
    """Write a part of the corpus. The shard comes last: where it is, its rejects are too."""
    name = f"{REJECTS}/{place.name}.jsonl"
    if rejects:
        lines = "".join(json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in rejects)
        folder.write(name, lines.encode("utf-8", "backslashreplace"))
    else:
        folder.remove(name)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    folder.write(f"{DATA}/{place.name}.parquet", buffer.getvalue())


def finished(folder: Folder) -> set[str]:
    """The names of the parts that are there, whole."""
    names = [name for name in folder.names(DATA) if name.endswith(".parquet")]
    return {name.removesuffix(".parquet") for name in names if _is_whole(folder, f"{DATA}/{name}")}


def _is_whole(folder: Folder, name: str) -> bool:
    """A Parquet file ends with its mark; it is written last."""
    with folder.open(name) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 4))
        return size > 8 and file.read(4) == b"PAR1"


class Totals(NamedTuple):
    """What a run has written."""

    explained: int
    rejected: int
    shards: int


def gather_rejects(folder: Folder) -> int:
    """Join the rejects of all parts into one file; returns how many there are."""
    parts = [folder.read(f"{REJECTS}/{name}") or b"" for name in folder.names(REJECTS)]
    folder.write(ALL_REJECTS, b"".join(parts))
    return sum(part.count(b"\n") for part in parts)


def count_rows(folder: Folder) -> int:
    return sum(_rows_in(folder, name) for name in folder.names(DATA))


def _rows_in(folder: Folder, name: str) -> int:
    with folder.open(f"{DATA}/{name}") as file:
        return pq.read_metadata(file).num_rows


def is_corpus(path: str) -> bool:
    """Whether a folder or URL holds a corpus run."""
    folder = Folder(path)
    return folder.fs.exists(folder.path(MANIFEST))


def corpus_runs(paths: Sequence[str], alone: bool) -> dict[str, str]:
    """Those of the paths that hold corpus runs, by name; they are not mixed with other attributions."""
    runs = [path.rstrip("/") for path in paths if is_corpus(path)]
    if runs and (len(runs) < len(paths) or not alone):
        raise CorpusError("corpus runs are evaluated by themselves, without texts and other attributions")
    names = [path.rsplit("/", 1)[-1] for path in runs]
    return dict(zip(names if len(set(names)) == len(names) else runs, runs, strict=True))


class Explained(NamedTuple):
    """A row of a corpus as it was explained."""

    place: tuple[int, int]
    """the number of its file and its own there: what rows are ordered by"""
    row_id: str
    attribution: Attribution
    label: str | None


def read_back(url: str, rows: int = 256) -> Iterator[Explained]:
    """Everything that a run wrote, in the order of the corpus, a few rows in memory at a time."""
    folder = Folder(url)
    if not is_corpus(url):
        raise CorpusError(f"{url} does not hold a corpus run: there is no {MANIFEST}")
    for name in folder.names(DATA):
        with folder.open(f"{DATA}/{name}") as handle, pq.ParquetFile(handle) as file:
            for batch in file.iter_batches(rows):
                for row in batch.to_pylist():
                    place = int(name.split("-")[1]), int(row["row_id"].rsplit(":", 1)[1])
                    yield Explained(place, row["row_id"], from_row(row), row["label"])
