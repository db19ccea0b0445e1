"""A GRU classifier, taken apart so that subsets of its input tokens can share their prefixes.

Running the model on one subset after the other repeats nearly all of the work: two subsets that agree on the
first t tokens have the same hidden state there. Here each such prefix is computed once, and so is the input
projection of each token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Request

MOST_TOKENS = 62
"""subsets are written as the bits of an int64"""


class Level(NamedTuple):
    """All subsets of one size: as bits (subsets,), with their last hidden states (subsets, hidden)."""

    codes: Tensor
    hidden: Tensor


class Recurrence(NamedTuple):
    """A one-layer GRU and the module that reads its last hidden state."""

    gru: nn.GRU
    head: nn.Module

    def project(self, state: Tensor) -> Tensor:
        """The input projection of the tokens: (..., 3 hidden)."""
        return F.linear(state, *self._weights("ih"))

    def step(self, projected: Tensor, hidden: Tensor) -> Tensor:
        """The hidden states (rows, hidden) after one more token."""
        from_hidden = F.linear(hidden, *self._weights("hh"))
        reset_in, update_in, new_in = projected.chunk(3, -1)
        reset_h, update_h, new_h = from_hidden.chunk(3, -1)
        reset, update = (reset_in + reset_h).sigmoid_(), (update_in + update_h).sigmoid_()
        new = (new_in + reset * new_h).tanh_()
        return torch.lerp(new, hidden, update)

    def _weights(self, which: str) -> list[Tensor]:
        """The weight and the bias, if any, of the input ("ih") or hidden ("hh") side of all gates."""
        return [p for name, p in self.gru.named_parameters() if f"_{which}_" in name]

    def start(self, state: Tensor) -> Tensor:
        return state.new_zeros(1, self.gru.hidden_size)

    def last(self, states: Tensor) -> Tensor:
        """The last hidden state (1, hidden) over the states (tokens, width) of one text."""
        hidden = self.start(states)
        for projected in self.project(states):
            hidden = self.step(projected, hidden)
        return hidden

    def levels(self, state: Tensor, baseline: Tensor, free: Tensor) -> Iterator[Level]:
        """For 0, 1, 2, ... kept tokens: the last hidden state of every such subset of the free tokens.

        `state` and `baseline` are (tokens, width) of one text; tokens that are not `free` (tokens,) are kept
        in all subsets. A subset of j of the first t + 1 tokens either drops token t, and is a subset of j of
        the first t, or keeps it, and is a subset of j - 1 of them: so a level needs the one before it only.
        """
        kept, dropped = self.project(state), self.project(baseline)
        before: list[Level | None] = [None] * (len(state) + 1)
        first: Level | None = Level(torch.zeros(1, dtype=torch.long, device=state.device), self.start(state))
        for _ in range(int(free.sum()) + 1):
            prefixes = [first]
            for t in range(len(state)):
                prefixes.append(self._extend(prefixes[t], before[t], t, bool(free[t]), kept[t], dropped[t]))
            before, first = prefixes, None
            assert prefixes[-1] is not None
            yield prefixes[-1]

    def _extend(
        self, same: Level | None, fewer: Level | None, t: int, free: bool, kept: Tensor, dropped: Tensor
    ) -> Level | None:
        """Subsets of j of t + 1 tokens, from those of j (`same`) and of j - 1 (`fewer`) of the first t."""
        parts = []
        if same is not None:
            parts.append(Level(same.codes, self.step(dropped if free else kept, same.hidden)))
        if fewer is not None and free:
            parts.append(Level(fewer.codes | (1 << t), self.step(kept, fewer.hidden)))
        if not parts:
            return None
        return Level(torch.cat([p.codes for p in parts]), torch.cat([p.hidden for p in parts]))


def members(codes: Tensor, tokens: int) -> Tensor:
    """Bits to a bool matrix (subsets, tokens)."""
    return (codes[:, None] >> torch.arange(tokens, device=codes.device)) & 1 == 1


def find_recurrence(request: Request, site: int, state: Tensor, baseline: Tensor) -> Recurrence | None:
    """The GRU and the head of a model that consists of nothing else above the site; None for other models.

    The guess is checked: it must give the model's own output for whole texts, and for texts with every other
    token replaced.
    """
    module, width = request.subject.module, state.shape[-1]
    grus = [m for m in module.modules() if isinstance(m, nn.GRU)]
    if len(grus) != 1 or not _plain(grus[0], width):
        return None
    edited = state.clone()
    edited[:, ::2] = baseline[:, ::2]
    for head in module.modules():
        if isinstance(head, nn.Linear) and head.in_features == grus[0].hidden_size:
            found = Recurrence(grus[0], head)
            if _reproduces(found, request, site, state) and _reproduces(found, request, site, edited):
                return found
    return None


def _plain(gru: nn.GRU, width: int) -> bool:
    return gru.num_layers == 1 and not gru.bidirectional and gru.input_size == width


@torch.no_grad()
def _reproduces(guess: Recurrence, request: Request, site: int, state: Tensor) -> bool:
    subject, batch = request.subject, request.batch
    rows = list(range(min(4, len(batch))))
    own = subject.run(batch.take(rows), replace={site: state[rows]}).output
    hidden = torch.cat([guess.last(state[i][batch.valid[i]]) for i in rows])
    output = read(guess, hidden, request, rows)
    return output.shape == own.shape and torch.allclose(output, own, rtol=1e-3, atol=1e-4)


def read(recurrence: Recurrence, hidden: Tensor, request: Request, rows: list[int]) -> Tensor:
    """The task's output for last hidden states that belong to the given texts of the batch."""
    return request.subject.task.read(recurrence.head(hidden), request.batch.take(rows))
