"""Cut work into pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from ..errors import MethodError

T = TypeVar("T")

TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 32768}
"""tokens of one forward pass; a larger batch is not faster"""
STATES_OF_A_BLOCK = 34
"""how many numbers a block stores for each token for the backward pass, in units of the width (Korthikanti et
al. 2022)"""
SHARE_OF_MEMORY = 0.25
"""the share of a GPU's free memory that one pass may take"""


def even(count: int, limit: int) -> int:
    """The chunk size, at most `limit`, that cuts `count` into equal chunks; a small last one is slow."""
    return max(1, -(-count // max(1, -(-count // limit))))


def in_halves(
    work: Callable[[list[int]], T], rows: list[int], also: tuple[type[Exception], ...] = ()
) -> Iterator[tuple[list[int], T]]:
    """`work(rows)`. If memory does not suffice, the rows are halved again and again, and the results come in
    order.

    Errors of the kinds in `also` halve the rows too. An error that a single row causes is raised.
    """
    try:
        result = work(rows)
    except Exception as error:
        if len(rows) == 1 or not (isinstance(error, also) or out_of_memory(error)):
            raise
    else:
        yield rows, result
        return
    # Only here, after the except block: the error no longer holds the tensors in memory.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(rows) // 2
    yield from in_halves(work, rows[:half], also)
    yield from in_halves(work, rows[half:], also)


def out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory did not suffice. torch has no error class for this on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def tokens_at_once(module: torch.nn.Module, device: torch.device) -> int:
    """How many tokens to run in one pass with gradients: limited by speed, and by the memory of a GPU."""
    most = TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cuda"])
    config: Any = getattr(module, "config", None)
    width, blocks = (getattr(config, name, None) for name in ("hidden_size", "num_hidden_layers"))
    if device.type != "cuda" or not width or not blocks:
        return most
    each = STATES_OF_A_BLOCK * blocks * width * next(module.parameters()).element_size()
    return max(1, min(most, int(SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0] / each)))


class BatchSize:
    """How many texts are run in one batch. The number falls when a batch does not fit into memory.

    Args:
        texts: the number of texts. Without it, a batch holds `tokens` tokens, padding included.
    """

    def __init__(self, texts: int | None, tokens: int) -> None:
        if texts is not None and texts < 1:
            raise MethodError(f"batch_size is {texts}; it must be at least 1")
        self.texts, self.tokens = texts, tokens

    def cut(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Batches of the numbers of texts with these lengths. Texts of similar length share a batch. The
        longest come first, so that a lack of memory shows early."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        while order:
            size = self.texts or max(1, self.tokens // max(1, lengths[order[0]]))
            yield order[:size]
            order = order[size:]

    def within_memory(
        self, work: Callable[[list[int]], T], rows: list[int], also: tuple[type[Exception], ...] = ()
    ) -> Iterator[tuple[list[int], T]]:
        """`work` on a batch, or on halves of it (see `in_halves`). After that, later batches are smaller."""
        tokens = self.tokens

        def tried(some: list[int]) -> T:
            try:
                return work(some)
            except Exception as error:
                if out_of_memory(error):  # half of what failed
                    self.texts = self.texts and max(1, min(self.texts, len(some) // 2))
                    self.tokens = max(1, min(self.tokens, tokens * len(some) // (2 * len(rows))))
                raise

        yield from in_halves(tried, rows, also)
