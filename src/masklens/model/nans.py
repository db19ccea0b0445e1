"""An output that is NaN is an error. To see it one has to wait for the GPU, so the look may be put off.

with looking_later() as looks:
    subject.run(batch)                   # does not wait
for look in looks:
    look.check()                         # raises what the run would have raised
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import OutputError
from .batch import arriving


class Look(NamedTuple):
    """For which texts of a batch the output is NaN."""

    bad: Tensor
    """(examples,) bool on the CPU, or on its way there"""
    texts: Sequence[Any]
    dtype: torch.dtype

    def check(self) -> None:
        """Raise an OutputError if there are any."""
        if not self.bad.any():
            return
        first = int(self.bad.nonzero()[0, 0])
        raise OutputError(
            f"the model's output is NaN for text {first} of the batch ({self.texts[first]!r:.80}); check the "
            f"weights, or run it in a wider type than {self.dtype}"
        )


_later: ContextVar[list[Look] | None] = ContextVar("later", default=None)


@contextmanager
def looking_later() -> Iterator[list[Look]]:
    """Inside the block, no run waits for a GPU to see if its output is NaN. The looks are for the caller,
    who takes them when the results have arrived."""
    looks = list[Look]()
    before = _later.set(looks)
    try:
        yield looks
    finally:
        _later.reset(before)


@contextmanager
def looking_now() -> Iterator[None]:
    """Inside the block every run looks at once: what is decided there must not rest on NaN."""
    before = _later.set(None)
    try:
        yield
    finally:
        _later.reset(before)


def refuse_nan(output: Tensor, texts: Sequence[Any]) -> None:
    """Look for NaN in an output (examples, ...), now or later."""
    bad = torch.isnan(output).reshape(len(texts), -1).any(1)
    look, later = Look(arriving(bad), texts, output.dtype), _later.get()
    if later is not None:
        later.append(look)
        return
    if output.is_cuda:
        torch.cuda.current_stream(output.device).synchronize()
    look.check()
