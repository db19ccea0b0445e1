"""Work in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def even(count: int, limit: int) -> int:
    """The chunk size, at most `limit`, that cuts `count` into equal chunks; a small last one is slow."""
    return max(1, -(-count // max(1, -(-count // limit))))


def in_halves(
    work: Callable[[list[int]], T], rows: list[int], also: tuple[type[Exception], ...] = ()
) -> Iterator[tuple[list[int], T]]:
    """`work(rows)`, or, where memory does not suffice, that of ever smaller halves of the rows, in order.

    Errors of the kinds in `also` halve the rows too. One that a single row causes is raised.
    """
    try:
        result = work(rows)
    except Exception as error:
        if len(rows) == 1 or not (isinstance(error, also) or out_of_memory(error)):
            raise
    else:
        yield rows, result
        return
    # Here, where the error no longer holds what was computed.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(rows) // 2
    yield from in_halves(work, rows[:half], also)
    yield from in_halves(work, rows[half:], also)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory did not suffice. The CPU's allocator has no error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
