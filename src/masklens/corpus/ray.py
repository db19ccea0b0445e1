"""Run a job on a Ray cluster: Ray Data moves chunks from readers to models; each model writes its shards.

The name of a shard depends only on its place in the corpus, and a shard is written in one step. So a chunk
that Ray repeats after a failure is written once, and the output is the same as on one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import CorpusError, MasklensError
from ..files import is_url
from ..files.reading import Row, chunks
from .job import Job
from .shards import Place, write_shard
from .storage import Folder
from .worker import Chunk, Worker

if TYPE_CHECKING:
    from .local import Plan, Report

READERS = 4
"""files that are read in parallel"""

CHUNK = pa.schema(
    {
        "number": pa.int32(),
        "file": pa.string(),
        "chunk": pa.int32(),
        "chunks": pa.int32(),
        "numbers": pa.list_(pa.int64()),
        "texts": pa.list_(pa.list_(pa.string())),
        "labels": pa.list_(pa.string()),
        "reasons": pa.list_(pa.string()),
    }
)
"""the columns of a Ray data set in which each row is a chunk of the corpus; a last row for each file says
how many chunks it has"""
DONE = pa.schema(
    {
        "number": pa.int32(),
        "chunk": pa.int32(),
        "chunks": pa.int32(),
        "explained": pa.int64(),
        "rejected": pa.int64(),
        "error": pa.string(),
    }
)


def run_on_ray(plan: Plan, address: str, cores: int, report: Report) -> set[str]:
    """Explain the chunks that are not done on the cluster at `address`. Returns the names of all shards."""
    ray = _ray()
    _check_places(plan.out, plan.files)
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False)
    try:
        with _small_blocks(ray):
            return _follow(_pipeline(ray, plan, cores), report)
    finally:
        if started:
            ray.shutdown()


def _follow(shards: Iterable[dict[str, Any]], report: Report) -> set[str]:
    """Report every shard, and collect the names of all shards from the number of chunks of each file."""
    expected: set[str] = set()
    for done in shards:
        if done["error"] is not None:
            raise CorpusError(done["error"])
        if done["chunks"] is not None:
            expected |= {Place(done["number"], k).name for k in range(done["chunks"])}
        else:
            name = Place(done["number"], done["chunk"]).name
            report(f"{name}: {done['explained']} explained, {done['rejected']} rejected")
    return expected


@contextmanager
def _small_blocks(ray: Any) -> Iterator[None]:
    """Keep every chunk in a block of its own. Ray would merge small blocks and give them to one worker."""
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size
    context.target_max_block_size = 1
    try:
        yield
    finally:
        context.target_max_block_size = before


def check_installed() -> None:
    """Raise a CorpusError if Ray is not installed."""
    _ray()


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise CorpusError("--ray needs Ray; install it with: pip install 'masklens[ray]'") from error
    return ray


def _check_places(out: str, files: Sequence[str]) -> None:
    """Refuse relative paths, which mean something else on other machines."""
    from pathlib import Path

    for path in (out, *files):
        if not is_url(path) and not Path(path).is_absolute():
            raise CorpusError(
                f"{path} is a relative path; with --ray give URLs, or absolute paths on storage that all "
                f"machines share"
            )


def _pipeline(ray: Any, plan: Plan, cores: int) -> Iterator[dict[str, Any]]:
    """Read, explain and write on the cluster. Yields a summary of every shard as it is written."""
    there = ray.cluster_resources()
    gpus, cpus = int(there.get("GPU", 0)), int(there.get("CPU", 1))
    workers = max(1, gpus or cpus // cores)
    needs = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": cores}
    files, job = plan.files, plan.job
    listed = enumerate(zip(files, plan.shares, strict=True))
    entries = [{"number": i, "file": file, "share": share} for i, (file, share) in listed]
    data = ray.data.from_items(entries, override_num_blocks=len(files))
    # Readers reserve no core: the models need all cores, and readers mostly wait.
    read = data.map_batches(
        _read,
        fn_kwargs={"job": job, "done": plan.done},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(size=min(READERS, len(files))),
    )
    explained = read.map_batches(
        Replica,
        fn_constructor_kwargs={"plan": plan, "cores": 0 if gpus else cores},
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),  # which starts lost actors again
        **needs,
    )
    yield from explained.iter_rows()


def _read(batch: pa.Table, job: Job, done: frozenset[str]) -> Iterator[pa.Table]:
    """The chunks of one file that are not done, and its number of chunks, each as a table with one row."""
    for entry in batch.to_pylist():
        place = {"number": entry["number"], "file": entry["file"]}
        count = 0
        for rows in chunks(entry["file"], job.read, job.shard_rows, entry["share"]):
            if Place(entry["number"], count).name not in done:
                yield pa.Table.from_pylist([place | {"chunk": count} | _packed(rows)], CHUNK)
            count += 1
        yield pa.Table.from_pylist([place | {"chunks": count}], CHUNK)


def _packed(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "numbers": [row.number for row in rows],
        "texts": [_texts(row) for row in rows],
        "labels": [row.label for row in rows],
        "reasons": [row.reason for row in rows],
    }


def _texts(row: Row) -> list[str] | None:
    """A row's text or pair as a list, which one column can hold."""
    return None if row.text is None else [row.text] if isinstance(row.text, str) else list(row.text)


def _unpacked(row: dict[str, Any]) -> list[Row]:
    texts = [None if t is None else t[0] if len(t) == 1 else (t[0], t[1]) for t in row["texts"]]
    return [Row(*cells) for cells in zip(row["numbers"], texts, row["labels"], row["reasons"], strict=True)]


class Replica:
    """One model on one GPU or some cores of the cluster."""

    def __init__(self, plan: Plan, cores: int) -> None:
        import torch

        if cores:
            torch.set_num_threads(cores)
        self.folder = Folder(plan.out)
        self.worker = Worker(plan.job, None if cores else "cuda", plan.strict)

    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._explain(row) for row in batch.to_pylist()], DONE)

    def _explain(self, row: dict[str, Any]) -> dict[str, Any]:
        """Explain and write a chunk. A user's mistake is returned, not raised: Ray would repeat the chunk."""
        told = {name: row[name] for name in ("number", "chunk", "chunks")}
        if row["chunks"] is not None:
            return told
        chunk = Chunk(Place(row["number"], row["chunk"]), row["file"], _unpacked(row))
        try:
            shard = self.worker.explain(self.worker.encode(chunk))
            write_shard(self.folder, *shard)
        except MasklensError as error:
            return told | {"error": str(error)}
        return told | {"explained": shard.table.num_rows, "rejected": len(shard.rejects)}
