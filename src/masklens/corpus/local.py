"""Run a job on this machine, with one process per device. Reading, computing and writing overlap."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from typing import Any, NamedTuple, TypeVar

from ..errors import CorpusError
from ..files import check_folder_writable
from ..files.reading import chunks, find_files, limits
from ..methods.registry import find
from ..model.devices import check_device
from .job import DATA, REJECTS, Job, begin, finish
from .shards import Place, Totals, finished, totals, write_shard
from .storage import Folder
from .worker import Chunk, Worker

T = TypeVar("T")
Report = Callable[[str], None]


class Plan(NamedTuple):
    """A job, with everything that is decided before the work begins."""

    job: Job
    out: str
    files: Sequence[str]
    shares: Sequence[int | None]
    """how many rows of each file are used"""
    done: frozenset[str]
    """the names of the shards that are finished already"""
    strict: bool = False


def run(
    job: Job,
    out: str,
    device: str | None = None,
    strict: bool = False,
    ray: str | None = None,
    cores: int = 1,
    report: Report = lambda message: None,
) -> Totals:
    """Explain a corpus and write shards to a folder. Call it again with the same job to resume a stopped run.

        run(Job(model="PATH", input="texts/*.jsonl", method="gradient"), "out")

    Args:
        out: a folder, or a URL that fsspec knows.
        device: one device, or several separated by commas; by default all GPUs of this machine, or the CPU.
        strict: stop at the first row that cannot be explained.
        ray: the address of a Ray cluster ("auto" for the one this machine belongs to) to run on.
        cores: CPU cores of each worker of a cluster without GPUs.
        report: a function that gets messages about the progress.
    """
    folder, places = Folder(out), devices(device)
    if ray is not None:
        from .ray import check_installed

        check_installed()
    if folder.local:
        check_folder_writable(folder.root)
    method = find(job.method_name())
    method.check_options(list(job.options))
    job = replace(job, method=method.name)
    files = find_files(job.input)
    with folder.lock():
        plan = _plan(job, folder, files, strict, report)
        if ray is not None:
            from .ray import run_on_ray

            expected = run_on_ray(plan, ray, cores, report)
        else:
            expected = _run_here(plan, places, report)
        found = totals(folder, expected)
        finish(folder, found.shards)
        return found


def _plan(job: Job, folder: Folder, files: Sequence[str], strict: bool, report: Report) -> Plan:
    """Remove unfinished files of killed runs, start or resume the run, and list the finished shards."""
    for part in (".", DATA, REJECTS):
        folder.clear_parts(part)
    for change in begin(job, folder, files):
        report(f"this run was started with another version: {change}")
    shares = limits(files, job.read, job.limit)
    return Plan(job, folder.url, files, shares, frozenset(finished(folder)), strict)


def devices(asked: str | None) -> list[str]:
    """The devices that were named; by default every GPU of this machine, or else the CPU."""
    if asked:
        names = [name.strip() for name in asked.split(",")]
        for name in names:
            check_device(name)
        return names
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]


def _run_here(plan: Plan, names: Sequence[str], report: Report) -> set[str]:
    """Do the work on these devices. Returns the names of all shards of the run."""
    if plan.done:
        report(f"{len(plan.done)} shards are done already")
    if len(names) > 1:
        return _run_processes(plan, names, report)
    share = Share(plan, names[0])
    for message in share:
        report(message)
    return share.seen


class Share:
    """One device's share of a plan: every `parts`-th chunk. Iterating yields a message for every shard."""

    def __init__(self, plan: Plan, device: str, part: int = 0, parts: int = 1) -> None:
        self.plan, self.part, self.parts = plan, part, parts
        self.seen: set[str] = set()
        """the names of all chunks that were read, including those of other devices"""
        self._make = lambda: Worker(plan.job, device, plan.strict)

    def __iter__(self) -> Iterator[str]:
        return work(self._make, Folder(self.plan.out), self.pending())

    def pending(self) -> Iterator[Chunk]:
        """The chunks to do, in order."""
        job = self.plan.job
        for i, (file, share) in enumerate(zip(self.plan.files, self.plan.shares, strict=True)):
            for k, rows in enumerate(chunks(file, job.read, job.shard_rows, share)):
                place, mine = Place(i, k), len(self.seen) % self.parts == self.part
                self.seen.add(place.name)
                if mine and place.name not in self.plan.done:
                    yield Chunk(place, file, rows)


def work(make: Callable[[], Worker], folder: Folder, todo: Iterable[Chunk]) -> Iterator[str]:
    """Explain chunks and write them; yields a message for each. The model is loaded with the first chunk."""
    todo = iter(todo)
    first = next(todo, None)
    if first is None:
        return
    worker = make()
    with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:
        written: deque[Future[None]] = deque()
        for encoded in _ahead(reading, map(worker.encode, chain([first], todo))):
            shard = worker.explain(encoded)
            if written:
                written.popleft().result()  # at most one shard waits to be written
            written.append(writing.submit(write_shard, folder, *shard))
            yield f"{shard.place.name}: {shard.table.num_rows} explained, {len(shard.rejects)} rejected"
        for one in written:
            one.result()


def _ahead(pool: ThreadPoolExecutor, items: Iterator[T]) -> Iterator[T]:
    """The items; another thread prepares the next one while the current one is used."""
    end: Any = object()
    future = pool.submit(next, items, end)
    while (item := future.result()) is not end:
        future = pool.submit(next, items, end)
        yield item


def _run_processes(plan: Plan, names: Sequence[str], report: Report) -> set[str]:
    """One process per device. Each is asked for one shard at a time; after a failure none starts another."""
    context = get_context("spawn")
    with ExitStack() as stack:
        pools = []
        for part, device in enumerate(names):
            begin_with = (plan, device, part, len(names))
            pool = ProcessPoolExecutor(1, context, initializer=_begin_process, initargs=begin_with)
            pools.append(stack.enter_context(pool))
        waiting = {pool.submit(_next_message): pool for pool in pools}
        expected: set[str] = set()
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                pool = waiting.pop(future)
                message = _result(future)
                if isinstance(message, str):
                    report(message)
                    waiting[pool.submit(_next_message)] = pool
                else:
                    expected |= message
    return expected


def _result(future: Future[str | set[str]]) -> str | set[str]:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise CorpusError(
            "a worker process was ended from outside; start the same command again to go on"
        ) from error


def _begin_process(plan: Plan, device: str, part: int, parts: int) -> None:
    """Set up a process for a device. It ends when its parent ends, so that no process goes on writing."""
    import torch

    global _share, _messages
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // parts))  # the processes share the cores
    _share = Share(plan, device, part, parts)
    _messages = iter(_share)


_share: Share
_messages: Iterator[str]
"""in a process of the pool: the iterator that does its share of the work"""


def _next_message() -> str | set[str]:
    """The message of the next shard; at the end, the names of all shards of the run."""
    return next(_messages, None) or _share.seen


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
