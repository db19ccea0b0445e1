"""How many chunks a second one Ray driver can hand out: what docs/corpus.md builds its forecast on.

    python -m benchmarks scaling

Workers that rest instead of computing stand in for GPUs: `n` of them that take `t` seconds a chunk could do
n / t chunks a second. A driver that needs `d` seconds a chunk of its own lets at most 1 / d through, which is
what workers show that do not rest at all. The pipeline, its chunks and its blocks are those of a corpus run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from benchmarks.timing import table
from masklens.corpus.ray import CHUNK, DONE, _packed, _small_blocks
from masklens.files.reading import Row

CHUNKS, ROWS = 300, 2048
"""chunks in all; texts a chunk"""
TEXT = "a text of about twenty words , as long as most sentences of reviews are , and of no interest ."


class Resting:
    """A worker that takes its time, computes nothing, and says when it is done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, batch: pa.Table) -> pa.Table:
        time.sleep(self.seconds)
        row = {"explained": int(time.time() * 1e6), "rejected": 0}
        return pa.Table.from_pylist([row] * batch.num_rows, DONE)


def read(batch: pa.Table) -> Any:
    """Chunks of a corpus file."""
    rows = [Row(i, TEXT) for i in range(ROWS)]
    for k in range(batch.to_pylist()[0]["chunks"]):
        yield pa.Table.from_pylist([{"number": 0, "file": "x", "chunk": k} | _packed(rows)], CHUNK)


def rate(ray: Any, workers: int, seconds: float) -> float:
    """Chunks a second once all workers are there."""
    files = 4
    entries = [{"chunks": CHUNKS // files} for _ in range(files)]
    data = ray.data.from_items(entries, override_num_blocks=files).map_batches(
        read, batch_size=1, batch_format="pyarrow", num_cpus=0, compute=ray.data.TaskPoolStrategy(size=4)
    )
    done = data.map_batches(
        Resting,
        fn_constructor_args=(seconds,),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
    )
    times = sorted(row["explained"] / 1e6 for row in done.iter_rows())
    first = len(times) // 4  # workers start one after another
    return (len(times) - 1 - first) / (times[-1] - times[first])


def main(cases: Sequence[tuple[int, float]] = ((2, 0.2), (4, 0.2), (8, 0.2), (4, 0.0))) -> str:
    try:
        import ray
    except ImportError:
        return "not run: Ray is not installed"
    ray.init(num_cpus=max(n for n, _ in cases), include_dashboard=False, log_to_driver=False)
    try:
        with _small_blocks(ray):
            rates = [(n, seconds, rate(ray, n, seconds)) for n, seconds in cases]
    finally:
        ray.shutdown()
    heads = ["workers", "seconds of rest a chunk", "chunks a second", "at most"]
    most = {(n, seconds): n / seconds if seconds else float("inf") for n, seconds in cases}
    return table(heads, [[str(n), str(s), f"{found:.1f}", f"{most[n, s]:.1f}"] for n, s, found in rates])
