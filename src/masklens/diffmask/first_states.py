"""Where a probe begins: statistics of the states of some training texts, and the first baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.batch import Batch, moved
from ..model.masking import edited_run
from ..model.subject import Subject
from ..progress import track
from .networks import Probe
from .texts import FrozenTexts, States, in_chunks

FIRST = 256
"""texts from which statistics are taken"""
COMMON, TRIED = 32, 64
"""how many tokens are tried as a first baseline, and on how many texts"""


def begin(probe: Probe, texts: FrozenTexts) -> None:
    """Set the statistics and the baselines of a new probe."""
    first = first_states(texts)
    probe.fit_statistics(first.states, first.usual, first.reader)
    begun = {edit: first.first_baseline(edit) for edit in dict.fromkeys(row.edit for row in probe.rows)}
    with torch.no_grad():
        for baseline, row in zip(probe.baselines, probe.rows, strict=True):
            baseline.copy_(begun[row.edit])
        for i, table in probe.places.items():
            table.copy_(first.place_means(probe.rows[int(i)].edit, len(table)))


def first_states(texts: FrozenTexts) -> FirstStates:
    """The states of up to FIRST texts."""
    drawn = texts.draw(list(range(min(FIRST, len(texts)))))
    return FirstStates(
        texts.subject, drawn.batch, drawn.output, drawn.removable, drawn.states(), drawn.reader
    )


class FirstStates(NamedTuple):
    subject: Subject
    batch: Batch
    output: Tensor
    removable: Tensor
    """(texts, tokens) bool: what a mask may drop"""
    states: States
    """(texts, tokens, width) each"""
    reader: Tensor | None
    """(texts,): where the next token is read, for a causal model"""

    @property
    def usual(self) -> Tensor:
        """The tokens that count, (texts, tokens) bool. A causal model has states of huge norm at the first
        place, which would drown all others: it is left out there."""
        later = self.removable.clone()
        later[:, 0] = False
        return later if self.reader is not None and bool(later.any()) else self.removable

    def tokens(self, site: int) -> Tensor:
        """(tokens, width)"""
        return self.states[site][self.usual].float()

    def spread(self, site: int) -> float:
        """The standard deviation of the states at a site, over all tokens and dimensions."""
        return float(self.tokens(site).std(0).square().mean().sqrt())

    def first_baseline(self, site: int) -> Tensor:
        """What a baseline begins with: at the words of a causal language model what harms least, at those of
        another model with a mask token its embedding, else the mean state: (width,)."""
        words = site == self.subject.sites[0]
        if words and self.reader is not None:
            return self._least_harm(site)
        mask = self._mask(site) if words else None
        return self.tokens(site).mean(0) if mask is None else mask

    def _mask(self, words: int) -> Tensor | None:
        """The embedding of the mask token, if there is one: (width,)."""
        mask = getattr(self.subject.tokenizer, "mask_token_id", None)
        if mask is None:
            return None
        return self.subject.points[words].module(torch.tensor([[mask]], device=self.subject.device))[0, 0]

    def _least_harm(self, words: int) -> Tensor:
        """Of the candidates the one under which the output moves least if half of the tokens of TRIED texts
        are dropped. A causal model has never read a mean of words, nor most of them a mask token, and that
        harms several times as much as some real words do."""
        tried, size = self._candidates(words), min(TRIED, len(self.batch))
        shape = (size, self.removable.shape[1])
        keep = moved(torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5, tried.device)
        chunks = list(in_chunks(self.batch.lengths[:size], self.subject.device.type))
        moves = [
            torch.stack([self._moves(words, rows, keep, one) for rows in chunks]).sum()
            for one in track(tried, "choosing what replaces a word")
        ]
        return tried[int(torch.stack(moves).argmin())]

    def _candidates(self, words: int) -> Tensor:
        """The mean, the mask token and the COMMON commonest tokens: (candidates, width)."""
        tokens, mask = self.tokens(words), self._mask(words)
        kinds, counts = tokens.unique(dim=0, return_counts=True)
        commonest = counts.argsort(descending=True, stable=True)[:COMMON]
        return torch.stack([tokens.mean(0), *([] if mask is None else [mask.float()]), *kinds[commonest]])

    @torch.no_grad()
    def _moves(self, words: int, rows: Sequence[int], keep: Tensor, baseline: Tensor) -> Tensor:
        """How far the outputs of some texts move, summed."""
        columns, some = int(self.batch.lengths[list(rows)].max()), list(rows)
        batch, state = self.batch.take(some).first_columns(columns), self.states[words][some, :columns]
        output = edited_run(self.subject, batch, words, state, keep[some, :columns], baseline)
        return self.subject.task.divergence(self.output[some], output).sum()

    def place_means(self, site: int, places: int) -> Tensor:
        """How the mean state of each place, from the second on (in a causal model from the first), differs
        from that of all; 0 where none was: (places, width)."""
        start = 1 if self.reader is None else 0
        inside = self.removable[:, start:]
        count = inside.sum(0)[:, None]  # (tokens, 1)
        total = (self.states[site][:, start:].float() * inside[..., None]).sum(0)
        found = torch.where(count > 0, total / count.clamp(min=1) - self.tokens(site).mean(0), 0.0)
        return torch.cat([found, found.new_zeros(max(0, places - len(found)), found.shape[1])])[:places]
