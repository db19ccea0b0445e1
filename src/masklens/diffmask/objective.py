"""What a lens minimises: the share of a text that is kept, while the model's output stays within a margin.

    minimise   E[share of states kept]    subject to    E[divergence] <= margin      (Eqs. 1 to 3)

for every row of the probe on its own. `LensObjective.terms` estimates both sides on one batch, and
`LensObjective.judge` measures hard masks on texts that training does not learn from.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..attribution import Text
from ..errors import TrainingError
from ..model.batch import Batch, moved
from ..model.masking import edited_run as edited_run
from ..model.subject import Run, Subject
from .networks import NOISE, THRESHOLD, Probe, Row, kept, mix, sample

CHUNK = {"cpu": 64, "cuda": 512}
"""texts of one forward pass without gradients"""
CHUNK_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""and how many tokens at most"""
HARD = 0.25
"""the share of a row's texts that are masked as a finished lens would: by hard masks, without noise"""
EMPTIED = 16
"""one text in so many is emptied while the baselines warm up, to ask what an empty text says"""
USUAL = 1024
"""how many texts the model's average output is taken over"""
FIRST = 256
"""texts from which statistics of states are taken"""
FEWEST = 3
"""texts of a row in a step, at least: one with sampled gates, one with a hard mask, one emptied"""
CERTAINTY = 3.0
"""standard errors by which a calibrated row stays within its margin on validation texts"""
GAP = 0.005
"""biases that keep nearly the same tokens, up to this share more, count as one in calibration"""
REACH = 20.0
"""how far calibration may shift a bias"""


class Drawn(NamedTuple):
    """Some texts, with the model's unedited output and states."""

    batch: Batch
    output: Tensor
    read: Callable[[int, slice], Tensor]
    """from a site and a slice of the texts to states (texts, tokens, width)"""

    def states(self, texts: slice = slice(None)) -> States:
        return States(lambda site: self.read(site, texts))


class States(dict[int, Tensor]):
    """States by site, read when they are first asked for."""

    def __init__(self, read: Callable[[int], Tensor]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, site: int) -> Tensor:
        self[site] = self._read(site)
        return self[site]


class FirstStates(NamedTuple):
    """States of the first texts: where a probe begins."""

    subject: Subject
    valid: Tensor
    """(texts, tokens) bool"""
    states: States
    """(texts, tokens, width) each"""

    def tokens(self, site: int) -> Tensor:
        """(tokens, width)"""
        return self.states[site][self.valid].float()

    def spread(self, site: int) -> float:
        """The standard deviation of the states at a site, over all tokens and dimensions."""
        return float(self.tokens(site).std(0).square().mean().sqrt())

    def first_baseline(self, site: int) -> Tensor:
        """At the words of a model with a mask token its embedding, else the mean state: (width,)."""
        mask = getattr(self.subject.tokenizer, "mask_token_id", None)
        if site == self.subject.sites[0] and mask is not None:
            return self.subject.points[site].module(torch.tensor([[mask]], device=self.subject.device))[0, 0]
        return self.tokens(site).mean(0)

    def place_means(self, site: int, places: int) -> Tensor:
        """How the mean state of each place, from the second on, differs from that of all; 0 where none was:
        (places, width)."""
        count = self.valid[:, 1:].sum(0)[:, None]  # (tokens, 1)
        total = (self.states[site][:, 1:].float() * self.valid[:, 1:, None]).sum(0)
        found = torch.where(count > 0, total / count.clamp(min=1) - self.tokens(site).mean(0), 0.0)
        return torch.cat([found, found.new_zeros(max(0, places - len(found)), found.shape[1])])[:places]


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
        self._kept: Run | None = None
        one = subject.states(self._batch([int(self.lengths.argmin())]), self.sites)
        self.widths = {site: state.shape[-1] for site, state in one.states.items()}
        each = sum(state.shape[-1] * state.element_size() for state in one.states.values())
        if each * int(self._columns.sum()) <= keep_bytes and one.output.shape[1:] == self._output_shape():
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
        if not self.batch.by_token:
            return torch.full((len(self),), self.batch.shape[1])
        attended = (self.batch.valid | self.batch.inputs["attention_mask"].bool()).cpu()
        return (attended * torch.arange(1, attended.shape[1] + 1)).amax(1)

    def draw(self, rows: Sequence[int]) -> Drawn:
        """These texts with their unedited outputs and states."""
        batch = self._batch(rows)
        if self._kept is None:
            run = self.subject.states(batch, self.sites)
            return Drawn(batch, run.output, lambda site, some: run.states[site][some])
        keeps = self._kept
        place = moved(self._places(rows, batch.shape[1]), batch.valid.device)
        output = keeps.output[moved(torch.tensor(rows), keeps.output.device)]
        return Drawn(batch, output, lambda site, some: keeps.states[site][place[some]])

    def some_states(self) -> FirstStates:
        """The states of up to FIRST texts."""
        drawn = self.draw(list(range(min(FIRST, len(self)))))
        return FirstStates(self.subject, drawn.batch.valid, drawn.states())

    def _places(self, rows: Sequence[int], width: int) -> Tensor:
        """Where the states of these rows are kept: (rows, width); padding is at the end of all."""
        ends, column = self._columns.cumsum(0), torch.arange(width)
        place = (ends - self._columns)[list(rows), None] + column
        return torch.where(column < self._columns[list(rows), None], place, ends[-1])

    def chunks(self) -> Iterator[list[int]]:
        """All rows in order of length, as many at a time as one forward pass takes."""
        kind = self.subject.device.type
        size, room = CHUNK.get(kind, CHUNK["cpu"]), CHUNK_TOKENS.get(kind, CHUNK_TOKENS["cpu"])
        chunk: list[int] = []
        for row in self.lengths.argsort(stable=True).tolist():
            if chunk and (len(chunk) == size or (len(chunk) + 1) * int(self.lengths[row]) > room):
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _batch(self, rows: Sequence[int]) -> Batch:
        return self.batch.take(rows).first_columns(int(self._columns[list(rows)].max()))

    def _output_shape(self) -> torch.Size:
        """The shape of the longest text's output: one that grows with the text cannot be kept."""
        longest = int(self.lengths.argmax())
        return self.subject.states(self._batch([longest]), self.sites[:1]).output.shape[1:]

    def _compute_all(self) -> Run:
        found: Run | None = None
        room = int(self._columns.sum()) + 1  # the last one is padding's
        for rows in self.chunks():
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


class Masks(Protocol):
    """What can be judged: a probe of either recipe."""

    rows: tuple[Row, ...]

    @property
    def reads(self) -> tuple[int, ...]: ...

    def baseline(self, row: int) -> Tensor: ...

    def keep_of(self, row: int, states: Mapping[int, Tensor]) -> Tensor: ...


@torch.no_grad()
def masked_outputs(
    probe: Masks, texts: FrozenTexts, drawn: Drawn, keeps: Mapping[int, Tensor]
) -> list[Tensor]:
    """The outputs when each of some rows of a probe is masked by its `keeps` (examples, tokens)."""
    every = slice(None)
    return [
        edited_run(
            texts.subject,
            drawn.batch,
            probe.rows[row].edit,
            drawn.read(probe.rows[row].edit, every),
            keep.float(),
            probe.baseline(row),
        )
        for row, keep in keeps.items()
    ]


class Judged(NamedTuple):
    """How one row's hard masks do on a set of texts."""

    divergence: float
    error: float
    """standard error of the divergence"""
    kept: float
    """share of tokens kept"""
    kept_error: float
    """standard error of the share kept, texts being drawn at random"""
    agreement: float


class Terms(NamedTuple):
    """One step's estimates, (rows,) each."""

    kept: Tensor
    """expected share of tokens kept (the expected L0 of Eq. 1, divided by the length)"""
    divergence: Tensor
    """under sampled gates"""
    hard: Tensor
    """divergence under hard masks; through it only the baselines learn"""
    emptied: Tensor
    """how far the output of emptied texts is from the model's average output; 0 after warming"""
    slope: Tensor
    """how fast the share kept grows with the logits of sampled gates"""


class LensObjective:
    """The masks of a probe over a corpus, judged on validation texts."""

    def __init__(
        self,
        probe: Probe,
        train: FrozenTexts,
        validation: FrozenTexts,
        margin: float,
        batch_size: int,
        anchored: bool,
        seed: int,
    ) -> None:
        self.probe, self.train, self.validation, self.margin, self.seed = (
            probe,
            train,
            validation,
            margin,
            seed,
        )
        self.per_row = max(FEWEST, batch_size // len(probe.rows))
        self.emptied = max(1, self.per_row // EMPTIED) if anchored and self._usual is not None else 0
        self.hard = max(1, round(HARD * self.per_row))
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def terms(self, step: int, rank: int = 0, world: int = 1, warming: bool = False) -> Terms:
        """The terms of a step; with several processes their mean over processes is the whole step's.

        Every row masks `per_row` texts of its own: first some by hard masks, the others by sampled gates.
        While the baselines warm up, all have random masks but for some at the end, which are emptied.
        """
        if self.per_row < world:
            raise TrainingError(
                f"a step has {self.per_row} texts a site for {world} processes; give a larger batch_size"
            )
        generator = self._generator("step", step)
        ids = self._texts(step, generator)  # (rows, per row)
        mine = torch.arange(self.per_row)[rank::world]
        drawn = self.train.draw(ids[:, mine].flatten().tolist())
        valid = drawn.batch.valid
        shape = (len(self.probe.rows), self.per_row, self.train.batch.shape[1])
        uniform = torch.rand(shape, generator=generator)[:, mine, : valid.shape[1]]
        dropout = torch.rand(*shape[:2], 1, generator=generator)[:, mine]
        uniform, dropout = (moved(one.flatten(0, 1), valid.device) for one in (uniform, dropout))
        logits = self._logits(drawn, len(mine))  # (rows * mine, tokens)
        empty = self.emptied if warming else 0
        hard, emptied = mine < self.hard, mine >= self.per_row - empty
        expand = lambda which: moved(which.repeat(len(self.probe.rows)), valid.device)[:, None]  # noqa: E731
        reference = drawn.output
        if warming:
            keep = torch.where(expand(emptied), 0.0, (uniform < dropout).float())
        else:
            keep = torch.where(expand(hard), (kept(logits) > THRESHOLD).float(), sample(logits, uniform))
        if empty:
            assert self._usual is not None
            wide = expand(emptied).reshape(-1, *[1] * (reference.dim() - 1))
            reference = torch.where(wide, self._usual.to(reference), reference)
        output = self._outputs(drawn, keep, len(mine))
        divergence = self.train.subject.task.divergence(reference, output).unflatten(0, (-1, len(mine)))
        tried = kept(logits.detach().clamp(-NOISE, NOISE))  # as gates are sampled
        share = lambda values: ((values * valid).sum(1) / valid.sum(1)).unflatten(0, (-1, len(mine)))  # noqa: E731

        def mean(values: Tensor, which: Tensor, count: int) -> Tensor:
            return (values * moved(which.to(values.dtype), values.device)).sum(1) * world / max(1, count)

        sampled, count = ~(hard | emptied), self.per_row - self.hard - empty
        return Terms(
            mean(share(kept(logits)), sampled, count),
            mean(divergence, sampled, count),
            mean(divergence, hard, self.hard),
            mean(divergence, emptied, empty),
            mean(share(tried * (1 - tried)), sampled, count),
        )

    def _logits(self, drawn: Drawn, each: int) -> Tensor:
        """Every row's logits of its own texts, one row's after the other's."""
        parts = [_part(i, each) for i in range(len(self.probe.rows))]
        return torch.cat([self.probe.logits(i, drawn.states(part)).float() for i, part in enumerate(parts)])

    def _outputs(self, drawn: Drawn, keep: Tensor, each: int) -> Tensor:
        """The outputs when every row's texts are edited at its site.

        Texts of all rows run together where they are edited at one site, where no block can be skipped below
        an edit, and on a GPU, which many small runs would leave idle.
        """
        subject, rows = self.train.subject, self.probe.rows
        edits = {row.edit for row in rows}
        if len(edits) > 1 and subject.blocks and keep.device.type != "cuda":
            return torch.cat([self._row_outputs(drawn, keep, i, each) for i in range(len(rows))])
        keep = torch.where(drawn.batch.valid, keep, 1.0)

        def edit_at(site: int) -> Callable[[Tensor], Tensor] | Tensor:
            here = [i for i, row in enumerate(rows) if row.edit == site]
            mine = [_part(i, each) for i in here]
            edited = [
                mix(keep[part], drawn.read(site, part), self.probe.baseline(i))
                for i, part in zip(here, mine, strict=True)
            ]
            if len(edits) == 1:
                return torch.cat(edited)
            return lambda state: _put(state, mine, edited)

        edited = {site: edit_at(site) for site in edits}
        return subject.run(drawn.batch, replace=edited, check=False).output

    def _row_outputs(self, drawn: Drawn, keep: Tensor, row: int, each: int) -> Tensor:
        part, edit = _part(row, each), self.probe.rows[row].edit
        batch = drawn.batch.take(range(part.start, part.stop))
        baseline = self.probe.baseline(row)
        return edited_run(
            self.train.subject, batch, edit, drawn.read(edit, part), keep[part], baseline, check=False
        )

    @cached_property
    def _usual(self) -> Tensor | None:
        """The model's average output, (1, ...); None where the task has none."""
        task = self.train.subject.task
        if not task.fixed_shape:
            return None
        rows = list(range(0, len(self.train), max(1, len(self.train) // USUAL)))
        some = [self.train.draw(rows[i : i + 64]).output for i in range(0, len(rows), 64)]
        return task.average(torch.cat(some))

    def _generator(self, what: str, number: int) -> torch.Generator:
        """For the randomness of one step or epoch. torch's generator uses 32 bits of its seed."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{what}/{number}".encode()))

    def _texts(self, step: int, generator: torch.Generator) -> Tensor:
        """The texts of a step, (rows, per row), shuffled each epoch."""
        size = self.per_row * len(self.probe.rows)
        epoch, place = divmod(step, max(1, len(self.train) // size))
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch, size))
        found = torch.tensor(self._epoch[1][place])
        return found[torch.randperm(size, generator=generator)].view(len(self.probe.rows), -1)

    def _shuffled(self, epoch: int, size: int) -> list[list[int]]:
        """An epoch's batches; where padding can be left out, texts of like length go together."""
        generator = self._generator("epoch", epoch)
        order = torch.randperm(len(self.train), generator=generator)
        if len(order) < size:  # few texts: some come more than once
            order = order.repeat(-(-size // len(order)))
        order = order[: len(order) // size * size]
        if self.train.batch.by_token:
            pools = [pool[self.train.lengths[pool].argsort(stable=True)] for pool in order.split(8 * size)]
            order = torch.cat(pools)
        batches = order.split(size)
        return [batches[i].tolist() for i in torch.randperm(len(batches), generator=generator).tolist()]

    def judge(self, texts: FrozenTexts | None = None, rows: Sequence[int] | None = None) -> list[Judged]:
        """How hard masks do on the validation texts, or on others."""
        return judge(self.probe, texts or self.validation, rows)

    @torch.no_grad()
    def calibrate(self) -> None:
        """Shift the bias of every row's gates so that its hard masks drop as much as the margin allows.

        The margin holds on the validation texts with CERTAINTY standard errors to spare, so that it is likely
        to hold on others too. Of the biases that keep nearly the same tokens the middle one is taken: at the
        edge a needed token would be kept with a probability just above the threshold.
        """
        for row, bias in enumerate(self.probe.biases):
            start = bias.clone()

            def judged(shift: float, row: int = row, bias: Tensor = bias, start: Tensor = start) -> Judged:
                bias.copy_(start + shift)
                return self.judge(rows=[row])[0]

            first = _least(lambda x: self._surely_within(judged(x)))  # noqa: B023
            most = judged(first).kept + GAP
            last = _least(lambda x: judged(x).kept > most)  # noqa: B023
            bias.copy_(start + (first + last) / 2)

    def _surely_within(self, judged: Judged) -> bool:
        return judged.divergence + CERTAINTY * judged.error <= self.margin


def _least(holds: Callable[[float], bool]) -> float:
    """The least shift within REACH from which on something holds, found by halving."""
    low, high = -REACH, REACH
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@torch.no_grad()
def judge(probe: Masks, texts: FrozenTexts, rows: Sequence[int] | None = None) -> list[Judged]:
    """How the hard masks of a probe's rows do on texts."""
    rows = range(len(probe.rows)) if rows is None else rows
    task, order = texts.subject.task, list(texts.chunks())
    found = []
    for chunk in order:
        drawn = texts.draw(chunk)
        states = drawn.states()
        keeps = {i: (probe.keep_of(i, states) > THRESHOLD) & drawn.batch.valid for i in rows}
        for i, output in zip(rows, masked_outputs(probe, texts, drawn, keeps), strict=True):
            divergence = task.divergence(drawn.output, output).double()
            agrees = task.agrees(drawn.output, output, drawn.batch).double()
            found.append(torch.stack([divergence, keeps[i].sum(1).double(), agrees]))
    lengths = texts.lengths[[row for chunk in order for row in chunk]].double()
    each = [torch.cat(found[i :: len(rows)], dim=1).cpu() for i in range(len(rows))]  # (3, texts)
    return [_judged(one, lengths) for one in each]


def _part(row: int, each: int) -> slice:
    return slice(row * each, (row + 1) * each)


def _put(state: Tensor, parts: Sequence[slice], edited: Sequence[Tensor]) -> Tensor:
    """A state with some of its examples replaced."""
    state = state.clone()
    for part, new in zip(parts, edited, strict=True):
        state[part] = new.to(state)
    return state


def _judged(values: Tensor, lengths: Tensor) -> Judged:
    """Means and standard errors from each text's divergence, tokens kept and agreement, (3, texts)."""
    count = len(lengths)
    divergence, tokens, agrees = values
    share = tokens.sum() / lengths.sum()
    off = tokens - share * lengths  # the share is a ratio of sums: its error is that of this mean
    spread = off.square().sum().sqrt() / lengths.sum()
    error = divergence.std(correction=0) / count**0.5
    return Judged(*(float(x) for x in (divergence.mean(), error, share, spread, agrees.mean())))
