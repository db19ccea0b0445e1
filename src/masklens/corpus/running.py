"""Run a job on this machine: reading, model and writing overlap; one process a device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

from ..errors import CorpusError, MasklensError
from ..methods import find
from .job import DATA, Job, begin, changed_versions
from .rows import chunks, limits
from .shards import REJECTS, Place, Totals, count_rows, finished, gather_rejects, write_shard
from .storage import Folder
from .worker import Chunk, Worker

T = TypeVar("T")
Report = Callable[[str], None]


def run(
    job: Job,
    out: str,
    device: str | None = None,
    strict: bool = False,
    ray: str | None = None,
    cores: int = 1,
    report: Report = lambda message: None,
) -> Totals:
    """Explain a corpus into a folder; started again after it was stopped, it goes on where it was.

        run(Job(model="PATH", input="texts/*.jsonl", method="gradient"), "out")

    Args:
        out: a folder, or a URL that fsspec knows.
        device: one device or several with commas between; by default every GPU here, or the CPU.
        strict: stop at the first row that cannot be explained.
        ray: the address of a Ray cluster ("auto" for the one this machine belongs to) to run on.
        cores: CPU cores of each of the cluster's workers, where it has no GPUs.
        report: is told what goes on.
    """
    folder = Folder(out)
    find(job.method).check_options(list(job.options))
    with folder.lock():
        files = begin(job, folder)
        for part in (DATA, REJECTS):
            folder.clear_parts(part)
        for change in changed_versions(folder):
            report(f"this run was begun with another version: {change}")
        shares = limits(files, job.read, job.limit)
        if ray is not None:
            from .cluster import run_on_ray

            run_on_ray(job, out, files, shares, ray, strict, cores, report)
        else:
            _run_here(job, out, files, shares, devices(device), strict, report)
        return _totals(folder)


def _totals(folder: Folder) -> Totals:
    totals = Totals(count_rows(folder), gather_rejects(folder), len(folder.names(DATA)))
    if totals.rejected and not totals.explained:
        first = (folder.read(f"{REJECTS}/{folder.names(REJECTS)[0]}") or b"").splitlines()[0].decode()
        raise CorpusError(f"none of the {totals.rejected} rows could be explained; the first: {first}")
    return totals


def devices(asked: str | None) -> list[str]:
    """The devices named, or every GPU of this machine, or the CPU."""
    if asked:
        return [name.strip() for name in asked.split(",") if name.strip()]
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]


def pending(
    job: Job,
    files: Sequence[str],
    shares: Sequence[int | None],
    done: set[str],
    part: int = 0,
    parts: int = 1,
) -> Iterator[Chunk]:
    """The chunks that are not done, in order; every `parts`-th of all, where several work at it."""
    numbers = count()
    for i, (file, share) in enumerate(zip(files, shares, strict=True)):
        for k, rows in enumerate(chunks(file, job.read, job.shard_rows, share)):
            place = Place(i, k)
            if next(numbers) % parts == part and place.name not in done:
                yield Chunk(place, file, rows)


def _run_here(
    job: Job,
    out: str,
    files: Sequence[str],
    shares: Sequence[int | None],
    names: Sequence[str],
    strict: bool,
    report: Report,
) -> None:
    done = finished(Folder(out))
    if done:
        report(f"{len(done)} shards are there already")
    if len(names) == 1:
        todo = pending(job, files, shares, done)
        work(lambda: Worker(job, names[0], strict), Folder(out), todo, report)
    else:
        _run_processes(job, out, files, shares, names, strict, report)


def work(make: Callable[[], Worker], folder: Folder, todo: Iterable[Chunk], report: Report) -> None:
    """Explain chunks and write them. The model is loaded if there is anything to do."""
    todo = iter(todo)
    first = next(todo, None)
    if first is None:
        return
    worker = make()
    with ThreadPoolExecutor(1) as encoding, ThreadPoolExecutor(1) as writing:
        written: deque[Future[None]] = deque()
        for encoded in _ahead(encoding, map(worker.encode, _chain(first, todo))):
            shard = worker.explain(encoded)
            if written:
                written.popleft().result()  # at most one shard waits to be written
            written.append(writing.submit(write_shard, folder, *shard))
            report(f"{shard.place.name}: {shard.table.num_rows} explained, {len(shard.rejects)} rejected")
        for one in written:
            one.result()


def _chain(first: T, rest: Iterator[T]) -> Iterator[T]:
    yield first
    yield from rest


def _ahead(pool: ThreadPoolExecutor, items: Iterator[T]) -> Iterator[T]:
    """The items, the next one made in another thread while this one is used."""
    end: Any = object()
    future = pool.submit(next, items, end)
    while (item := future.result()) is not end:
        future = pool.submit(next, items, end)
        yield item


def _run_processes(
    job: Job,
    out: str,
    files: Sequence[str],
    shares: Sequence[int | None],
    names: Sequence[str],
    strict: bool,
    report: Report,
) -> None:
    """One process a device; each reads the corpus and takes every n-th chunk."""
    context = get_context("spawn")
    pipes, processes = [], []
    for part, device in enumerate(names):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (job, out, files, shares, device, strict, part, len(names), theirs)
        process = context.Process(target=_process, args=arguments)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        _listen(pipes, report)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()


def _listen(pipes: list[Any], report: Report) -> None:
    """Pass on what the processes say, until all have said that they are done."""
    waiting = list(pipes)
    while waiting:
        for pipe in connection.wait(waiting):
            kind, message = _receive(pipe)
            if kind == "failed":
                raise CorpusError(message)
            if kind == "done":
                waiting.remove(pipe)
            else:
                report(message)


def _receive(pipe: Any) -> tuple[str, str]:
    try:
        kind, _, message = pipe.recv_bytes().decode().partition(" ")
    except EOFError:
        return "failed", "a worker process was ended from outside; start the same command again to go on"
    return kind, message


def _process(
    job: Job,
    out: str,
    files: Sequence[str],
    shares: Sequence[int | None],
    device: str,
    strict: bool,
    part: int,
    parts: int,
    pipe: Any,
) -> None:
    """The work of one process; it ends with the process that started it, so that no writer is left over."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, torch.get_num_threads() // parts))  # the processes share the cores

    def say(kind: str, message: str = "") -> None:
        pipe.send_bytes(f"{kind} {message}".encode("utf-8", "backslashreplace"))

    folder = Folder(out)
    todo = pending(job, files, shares, finished(folder), part, parts)
    try:
        work(lambda: Worker(job, device, strict), folder, todo, lambda message: say("said", message))
    except MasklensError as error:
        say("failed", str(error))
    else:
        say("done")


def _end_with_parent() -> None:
    import os

    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
