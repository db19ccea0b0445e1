"""Gate networks: from the states of a model to the logits of its gates.

A lens makes one decision a *row*. A row edits the states at one site and reads the states at others:

    inputs   the row of site l edits the words (site 0) and reads (0, l)
    states   the row of site l edits and reads site l
    pairs    a row (a, b) edits site a and reads site b

(De Cao et al. 2020, section 2 and appendix A; their Figure 3e, right, needs a pair.) Rows share nothing, not
even the baseline, so that no row takes from another what it could drop alone.

In a causal model the state of a token knows nothing of what comes after it, so it cannot tell what the end of
the text asks for. There a gate also reads the state at the position where the next token is read, at the same
site, and how far away that is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LensError, TrainingError
from .gates import HardConcrete

OPEN = 3.0
"""logit of every gate before training: kept with probability 0.96"""
LIMIT = 7.0
"""logits stay within this: kept with a probability between 0.001 and 0.999"""
NOISE = 3.0
"""gates are sampled as if their logit was within this, so that also a nearly certain gate is tried both ways
in one step of about twenty, and gets a gradient"""
TEMPERATURE = 0.5
"""of the gates that are sampled in training. The paper's 0.2 gives nearly hard samples, few of which have a
gradient; with 0.5 a gate learns from four times as few texts"""
OUTLIER = 20.0
"""how many standard deviations from the mean a gate sees: the first place of a causal model has states a
hundred times as large as others, which would saturate every unit"""
SCALE = 10.0
"""factor of the networks' outputs: without it logits would move too slowly"""
THRESHOLD = 0.5
"""hard masks keep a token where P(kept) is above this"""

Over = str | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class MaskRow:
    """One decision: which states at site `edit` can go, judged from the states at sites `reads`."""

    site: int
    """the site under which the decision is reported"""
    edit: int
    reads: tuple[int, ...]


def rows_for(over: Over, sites: Sequence[int], words: int = 0) -> tuple[MaskRow, ...]:
    """The rows of a lens over "inputs", "states", or (edited site, read site) pairs.

    Args:
        sites: the sites to read.
        words: the site of the word embeddings, which masks over "inputs" edit.
    """
    if over == "inputs":
        return tuple(MaskRow(site, words, (words, site)) for site in sites)
    if over == "states":
        return tuple(MaskRow(site, site, (site,)) for site in sites)
    if isinstance(over, str):
        raise TrainingError(f"over={over!r}; use 'inputs', 'states', or pairs (edited site, read site)")
    reads = [read for _, read in over]
    if len(set(reads)) < len(reads):
        raise TrainingError(f"over={list(over)}: a site is read twice; fit a lens for each of its pairs")
    return tuple(MaskRow(read, edit, (read,)) for edit, read in over)


def needed_sites(rows: Sequence[MaskRow]) -> tuple[int, ...]:
    """The sites whose states the rows edit or read."""
    return tuple(dict.fromkeys(site for row in rows for site in (row.edit, *row.reads)))


_seeding = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """New layers begin with torch's own random numbers: here they come from a seed, one thread at a time."""
    with _seeding, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class GateNetwork(nn.Module):
    """One hidden layer with tanh, from a token's states to the logit of its gate (appendix A).

    Inputs are standardised with statistics of the training states. No optimiser moves the gate's bias: the
    trainer does, to hold the margin (see `multipliers.Offsets`).
    """

    mean: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float32))
        self.register_buffer("scale", torch.ones(width, dtype=torch.float32))
        self.register_buffer("bias", torch.tensor(OPEN, dtype=torch.float32))
        self.inner = nn.Linear(width, hidden, dtype=torch.float32)
        self.outer = nn.Linear(hidden, 1, bias=False, dtype=torch.float32)
        nn.init.normal_(self.inner.weight, std=width**-0.5)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.weight)

    def forward(self, *states: Tensor) -> Tensor:
        """States of one or more sites, (..., width) each, to logits (...)."""
        seen = torch.cat([state.to(self.mean.dtype) for state in states], dim=-1)
        return side_by_side([self], seen.reshape(1, -1, seen.shape[-1])).view(seen.shape[:-1])


def side_by_side(gates: Sequence[GateNetwork], seen: Tensor) -> Tensor:
    """The logits of networks of one shape, each for its own tokens: (networks, tokens, width) to (networks,
    tokens)."""

    def each(name: str) -> Tensor:
        return torch.stack([attrgetter(name)(gate) for gate in gates])

    standard = ((seen - each("mean")[:, None]) / each("scale")[:, None]).clamp(-OUTLIER, OUTLIER)
    # In this order gradients have the layout of the weights, as several GPUs need them to be summed.
    inner = torch.baddbmm(each("inner.bias")[..., None], each("inner.weight"), standard.mT)
    logits = (each("outer.weight") @ torch.tanh(inner))[:, 0]  # inner: (networks, hidden, tokens)
    return inward(each("bias")[:, None] + SCALE * logits, -LIMIT, LIMIT)


class Masks(nn.Module):
    """The decisions of a lens, and what replaces the states that they drop."""

    rows: tuple[MaskRow, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The sites whose states are needed."""
        return needed_sites(self.rows)

    def baseline(self, row: int) -> Tensor:
        """What replaces a state that a row drops: a vector (width,), or a table by place."""
        raise NotImplementedError

    def keep_of(self, row: int, states: Mapping[int, Tensor], reader: Tensor | None = None) -> Tensor:
        """One row's P(kept), (examples, tokens), from states (examples, tokens, width) by site.

        Args:
            reader: the position where the next token is read, (examples,), for a causal model.
        """
        raise NotImplementedError

    def keep(self, states: Mapping[int, Tensor], reader: Tensor | None = None) -> Tensor:
        """P(kept) at every row: (rows, examples, tokens)."""
        return torch.stack([self.keep_of(row, states, reader) for row in range(len(self.rows))])


def hidden_units(row: MaskRow, widths: Mapping[int, int], given: int | None) -> int:
    """Of a gate network: by default a quarter of the edited state's width, at least 32."""
    return given or max(32, widths[row.edit] // 4)


class Probe(Masks):
    """A gate network for every row, and the baselines that replace what they drop.

    Args:
        rows: the decisions to make.
        widths: the width of the state at each site.
        hidden: hidden units of a gate network (see `hidden_units`).
        places: how many places of a text, from the second on, have a baseline of their own. Never at the
            words, to which the model adds positions afterwards, and never at the first place, where a [CLS]
            token would be imitated. In a causal model they are counted from the first, which has seen no
            other and holds no answer.
        causal: whether gates also read the position where the next token is read.
    """

    def __init__(
        self,
        rows: Sequence[MaskRow],
        widths: Mapping[int, int],
        hidden: int | None = None,
        places: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.rows, self.causal = tuple(rows), causal
        self.gates = nn.ModuleList(
            GateNetwork(_seen_width(row, widths, causal), hidden_units(row, widths, hidden))
            for row in self.rows
        )
        self.baselines = nn.ParameterList(
            torch.zeros(widths[row.edit], dtype=torch.float32) for row in self.rows
        )
        self.places = nn.ParameterDict(
            {
                str(i): torch.zeros(places, widths[row.edit], dtype=torch.float32)
                for i, row in enumerate(self.rows)
                if places and row.edit
            }
        )

    def gate(self, row: int) -> GateNetwork:
        return cast(GateNetwork, self.gates[row])

    def baseline(self, row: int) -> Tensor:
        """What replaces a state that a row drops: a vector (width,), or a table by place (see `baseline_at`)
        whose last row, and first unless the model is causal, is the vector alone."""
        vector, name, before = self.baselines[row], str(row), 0 if self.causal else 1
        return vector + F.pad(self.places[name], (0, 0, before, 1)) if name in self.places else vector

    @property
    def biases(self) -> list[Tensor]:
        """The bias of every row's gates."""
        return [self.gate(row).bias for row in range(len(self.rows))]

    def seen(self, row: int, states: Mapping[int, Tensor], reader: Tensor | None = None) -> list[Tensor]:
        """What one row's gates read, (examples, tokens, width) each, from states by site."""
        own = [states[site] for site in self.rows[row].reads]
        if not self.causal:
            return own
        if reader is None:
            raise LensError("the gates of a causal model read where the next token is read; give the reader")
        return [*own, *read_from(own[-1], reader)]

    def logits(self, row: int, states: Mapping[int, Tensor], reader: Tensor | None = None) -> Tensor:
        """One row's logits (examples, tokens) from states (examples, tokens, width) by site."""
        return self.gate(row)(*self.seen(row, states, reader))

    def own_logits(self, seen: Mapping[int, Sequence[Tensor]]) -> Tensor:
        """The logits of some rows, each of its own texts, one row's after the other's, from the states that
        each row sees, (texts, tokens, width). Neighbours of one shape are computed together, because a GPU is
        slow at many small products.
        """
        found = []
        for _, group in groupby(seen, lambda row: self.gate(row).inner.weight.shape):
            rows = list(group)
            every = torch.stack([torch.cat([one.float() for one in seen[row]], dim=-1) for row in rows])
            logits = side_by_side([self.gate(row) for row in rows], every.flatten(1, 2))
            found.append(logits.view(-1, every.shape[2]))
        return torch.cat(found)

    def keep_of(self, row: int, states: Mapping[int, Tensor], reader: Tensor | None = None) -> Tensor:
        return kept(self.logits(row, states, reader))

    @torch.no_grad()
    def fit_statistics(
        self, states: Mapping[int, Tensor], usual: Tensor, reader: Tensor | None = None
    ) -> None:
        """Standardise each network's inputs by mean and standard deviation over the tokens that are `usual`,
        (examples, tokens) bool."""
        for i in range(len(self.rows)):
            seen = torch.cat([one[usual].float() for one in self.seen(i, states, reader)], dim=-1)
            self.gate(i).mean.copy_(seen.mean(0))
            self.gate(i).scale.copy_(seen.std(0).clamp(min=1e-3))


def _seen_width(row: MaskRow, widths: Mapping[int, int], causal: bool) -> int:
    return sum(widths[site] for site in row.reads) + (widths[row.reads[-1]] + 1 if causal else 0)


def read_from(state: Tensor, reader: Tensor) -> list[Tensor]:
    """For each token the state (examples, tokens, width) at the reader (examples,), and how near that is,
    (examples, tokens, 1): 1 there, 1/2 one token before it, 1/3 two before."""
    examples, tokens, _ = state.shape
    there = state[torch.arange(examples, device=state.device), reader]
    away = (reader[:, None] - torch.arange(tokens, device=state.device)).abs()
    return [there[:, None].expand_as(state), (1 / (1 + away))[..., None].to(state.dtype)]


def kept(logits: Tensor) -> Tensor:
    """P(kept), the probability that a gate is not exactly 0."""
    return HardConcrete(logits).prob_nonzero()


def noisy(logits: Tensor) -> Tensor:
    """The logits that gates are sampled with: within NOISE, with the gradient of the logits themselves.

    A gate that is never tried otherwise learns nothing: saturation ends learning.
    """
    return logits + (logits.clamp(-NOISE, NOISE) - logits).detach()


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Gates in [0, 1) drawn with noise `uniform` in (0, 1)."""
    return HardConcrete(noisy(logits), TEMPERATURE).rsample(uniform=uniform)


class _Inward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(value)
        ctx.limits = low, high
        return value.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (value,), (grad,), (low, high) = ctx.saved_tensors, grads, ctx.limits
        outward = ((value > high) & (grad < 0)) | ((value < low) & (grad > 0))
        return torch.where(outward, 0.0, grad), None, None


def inward(value: Tensor, low: float, high: float) -> Tensor:
    """Values clamped to the limits, with gradients that only ever lead back inside.

    A plain clamp has no gradient outside its limits, so a gate beyond them could never come back.
    """
    return _Inward.apply(value, low, high)
