"""Texts that a lens learns from or is judged on: encoded once, with the states and outputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..attribution import Text
from ..model.batch import Batch, moved
from ..model.subject import Run, Subject
from ..progress import track

CHUNK = {"cpu": 64, "cuda": 512}
"""texts of one forward pass without gradients"""
CHUNK_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""and how many tokens at most"""


class Drawn(NamedTuple):
    """Some texts, with the model's unedited output and states."""

    batch: Batch
    output: Tensor
    read: Callable[[int, slice], Tensor]
    """from a site and a slice of the texts to states (texts, tokens, width)"""
    removable: Tensor
    """(texts, tokens) bool: what a mask may drop"""
    reader: Tensor | None
    """(texts,): where the next token is read, for a causal model"""

    def states(self, texts: slice = slice(None)) -> States:
        return States(lambda site: self.read(site, texts))

    def reader_of(self, texts: slice) -> Tensor | None:
        return None if self.reader is None else self.reader[texts]


class States(dict[int, Tensor]):
    """States by site, read when they are first asked for."""

    def __init__(self, read: Callable[[int], Tensor]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, site: int) -> Tensor:
        self[site] = self._read(site)
        return self[site]


class FrozenTexts:
    """Texts encoded once, with the model's unedited outputs and states, which are kept if they fit.

    States are kept without padding, one text after the other. What does not fit into `keep_bytes` is
    computed again for each batch.
    """

    def __init__(
        self, subject: Subject, texts: Sequence[Text], sites: Sequence[int], keep_bytes: int
    ) -> None:
        self.subject, self.sites = subject, tuple(sites)
        self.batch = subject.encode(texts)
        self.lengths = self.batch.valid.sum(1).cpu()
        self.counts = subject.task.removable(self.batch).sum(1).cpu()
        """(texts,): how many tokens a mask may drop"""
        self._kept: Run | None = None
        one = subject.states(self._batch([int(self.lengths.argmin())]), self.sites)
        self.widths = {site: state.shape[-1] for site, state in one.states.items()}
        each = sum(state.shape[-1] * state.element_size() for state in one.states.values())
        outputs = len(self) * one.output.numel() * one.output.element_size()
        fits = each * int(self._columns.sum()) + outputs <= keep_bytes
        if fits and one.output.shape[1:] == self._output_shape():
            self._kept = self._compute_all()

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return int(self.lengths.max())

    @cached_property
    def _columns(self) -> Tensor:
        """(texts,): how many columns a text needs; what comes after them is padding."""
        return self.batch.lengths

    def draw(self, rows: Sequence[int]) -> Drawn:
        """These texts with their unedited outputs and states."""
        batch = self._batch(rows)
        masks = self.subject.task.removable(batch), self.subject.task.reader(batch)
        if self._kept is None:
            run = self.subject.states(batch, self.sites)
            return Drawn(batch, run.output, lambda site, some: run.states[site][some], *masks)
        keeps = self._kept
        place = moved(self._places(rows, batch.shape[1]), batch.valid.device)
        output = keeps.output[moved(torch.tensor(rows), keeps.output.device)]
        return Drawn(batch, output, lambda site, some: keeps.states[site][place[some]], *masks)

    def _places(self, rows: Sequence[int], width: int) -> Tensor:
        """Where the states of these rows are kept: (rows, width); padding is at the end of all."""
        ends, column = self._columns.cumsum(0), torch.arange(width)
        place = (ends - self._columns)[list(rows), None] + column
        return torch.where(column < self._columns[list(rows), None], place, ends[-1])

    def chunks(self) -> Iterator[list[int]]:
        """All rows in order of length, as many at a time as one forward pass takes."""
        return in_chunks(self.lengths, self.subject.device.type)

    def _batch(self, rows: Sequence[int]) -> Batch:
        return self.batch.take(rows).first_columns(int(self._columns[list(rows)].max()))

    def _output_shape(self) -> torch.Size:
        """The shape of the longest text's output: one that grows with the text cannot be kept."""
        longest = int(self.lengths.argmax())
        return self.subject.states(self._batch([longest]), self.sites[:1]).output.shape[1:]

    def _compute_all(self) -> Run:
        found: Run | None = None
        room = int(self._columns.sum()) + 1  # the last one is padding's
        for rows in track(list(self.chunks()), "running the model on the texts"):
            batch = self._batch(rows)
            run = self.subject.states(batch, self.sites)
            if found is None:
                states = {k: s.new_zeros(room, s.shape[-1]) for k, s in run.states.items()}
                found = Run(run.output.new_zeros(len(self), *run.output.shape[1:]), states)
            found.output[torch.as_tensor(rows, device=run.output.device)] = run.output
            place = self._places(rows, batch.shape[1])
            inside = place < room - 1
            for site, state in run.states.items():
                found.states[site][place[inside].to(state.device)] = state[inside.to(state.device)]
        assert found is not None
        return found


def in_chunks(lengths: Tensor, device: str) -> Iterator[list[int]]:
    """Numbers of texts in order of length (texts,), as many at a time as one forward pass takes."""
    size, room = CHUNK.get(device, CHUNK["cpu"]), CHUNK_TOKENS.get(device, CHUNK_TOKENS["cpu"])
    chunk: list[int] = []
    for row in lengths.argsort(stable=True).tolist():
        if chunk and (len(chunk) == size or (len(chunk) + 1) * int(lengths[row]) > room):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk
