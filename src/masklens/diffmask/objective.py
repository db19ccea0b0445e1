"""What a lens minimises: the share of a text that is kept, while the model's output stays within a margin.

    minimise   E[share of states kept]    subject to    E[divergence] <= margin      (Eqs. 1 to 3)

for every row of the probe on its own. `LensObjective.terms` estimates both sides on one batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import TrainingError
from ..model.batch import moved
from ..model.masking import baseline_at, edited_run, mix
from .judging import Judged, calibrate, judge
from .networks import NOISE, THRESHOLD, Probe, kept, sample
from .texts import Drawn, FrozenTexts

if TYPE_CHECKING:
    from .trainer import Settings

HARD = 0.25
"""the share of a row's texts that are masked as a finished lens would: by hard masks, without noise"""
EMPTIED = 16
"""one text in so many is emptied while the baselines warm up, to ask what an empty text says"""
USUAL = 1024
"""how many texts the model's average output is taken over"""
POOL = 8
"""how many batches are sorted by length together; few texts come more than once, to be enough for it"""
FEWEST = 3
"""texts of a row in a step, at least: one with sampled gates, one with a hard mask, one emptied"""


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


class Step(NamedTuple):
    """The texts of a step that are this process's, one row's after the other's."""

    rows: Sequence[int]
    drawn: Drawn
    each: int
    """texts of a row"""
    logits: Tensor
    """(rows * each, tokens), each row's of its own texts"""
    uniform: Tensor
    """noise in (0, 1), (rows * each, tokens)"""
    share: Tensor
    """how much is kept under random masks, (rows * each, 1)"""
    hard: Tensor
    """(each,) bool: which of a row's texts have hard masks"""
    emptied: Tensor
    """(each,) bool: and which are emptied"""

    @property
    def sampled(self) -> Tensor:
        return ~(self.hard | self.emptied)

    def of_all(self, which: Tensor) -> Tensor:
        """(each,) for every row: (rows * each, 1)"""
        return moved(which.repeat(len(self.logits) // self.each), self.logits.device)[:, None]

    def by_row(self, values: Tensor) -> Tensor:
        """(rows * each,) to (rows, each)"""
        return values.unflatten(0, (-1, self.each))

    def shares(self, values: Tensor) -> Tensor:
        """The mean over what can be dropped of each text of values (rows * each, tokens): (rows, each)."""
        inside = self.drawn.removable
        return self.by_row((values * inside).sum(1) / inside.sum(1).clamp(min=1))


class LensObjective:
    """The masks of a probe over a corpus, judged on validation texts."""

    def __init__(self, probe: Probe, train: FrozenTexts, validation: FrozenTexts, settings: Settings) -> None:
        self.probe, self.train, self.validation, self.settings = probe, train, validation, settings
        rows = len(probe.rows)
        self.per_row = max(FEWEST, settings.batch_on(train.subject.device, rows) // rows)
        anchored = settings.anchor > 0 and self._usual is not None
        self.emptied = max(1, self.per_row // EMPTIED) if anchored else 0
        self.hard = max(1, round(HARD * self.per_row))
        filling = -(-self.per_row * rows // len(train))
        sorting = -(-POOL * self.per_row * rows // len(train)) if train.batch.by_token else 1
        self._copies = max(filling, min(sorting, rows))
        """how often a text comes in an epoch; in a step only once for each row, unless texts are too few"""
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def terms(
        self,
        step: int,
        rank: int = 0,
        world: int = 1,
        warming: bool = False,
        rows: Sequence[int] | None = None,
    ) -> Terms:
        """The terms of a step, for all rows or for some; with several processes their mean over processes is
        the whole step's.

        Every row masks `per_row` texts of its own: first some by hard masks, the others by sampled gates.
        While the baselines warm up, all have random masks but for some at the end, which are emptied.
        """
        if self.per_row < world:
            raise TrainingError(
                f"a step has {self.per_row} texts a site for {world} processes; give a larger batch_size"
            )
        rows = range(len(self.probe.rows)) if rows is None else rows
        made = self._step(step, torch.arange(self.per_row)[rank::world], warming, rows)
        keep = self._random(made) if warming else self._gated(made)
        output = self._outputs(made, keep)
        divergence = made.by_row(self.train.subject.task.divergence(self._reference(made), output))
        empty = self.emptied if warming else 0
        sampled = self.per_row - self.hard - empty
        tried = kept(made.logits.detach().clamp(-NOISE, NOISE))  # as gates are sampled

        def mean(values: Tensor, which: Tensor, count: int) -> Tensor:
            return (values * moved(which.to(values.dtype), values.device)).sum(1) * world / max(1, count)

        return Terms(
            mean(made.shares(kept(made.logits)), made.sampled, sampled),
            mean(divergence, made.sampled, sampled),
            mean(divergence, made.hard, self.hard),
            mean(divergence, made.emptied, empty),
            mean(made.shares(tried * (1 - tried)), made.sampled, sampled),
        )

    def _step(self, step: int, mine: Tensor, warming: bool, rows: Sequence[int]) -> Step:
        """The texts and noise of some rows; `mine` (each,) says which of a row's texts are this process's."""
        generator, some = self._generator("step", step), torch.tensor(rows)[:, None]
        ids = self._texts(step, generator)
        drawn = self.train.draw(ids[some, mine].flatten().tolist())
        shape = (*ids.shape, self.train.batch.shape[1])
        noise = torch.rand(shape, generator=generator, dtype=torch.float32)
        uniform = noise[some, mine, : drawn.batch.shape[1]]  # (rows, each, tokens)
        share = torch.rand(*ids.shape, 1, generator=generator, dtype=torch.float32)[some, mine]
        uniform, share = (moved(one.flatten(0, 1), drawn.batch.valid.device) for one in (uniform, share))
        emptied = mine >= self.per_row - (self.emptied if warming else 0)
        logits = self._logits(drawn, rows, len(mine))
        return Step(rows, drawn, len(mine), logits, uniform, share, mine < self.hard, emptied)

    def _random(self, made: Step) -> Tensor:
        """Random masks, each text with a share of its own."""
        return torch.where(made.of_all(made.emptied), 0.0, (made.uniform < made.share).float())

    def _gated(self, made: Step) -> Tensor:
        """What the gates say: hard masks for some texts, samples for the others."""
        hard = (kept(made.logits) > THRESHOLD).float()
        return torch.where(made.of_all(made.hard), hard, sample(made.logits, made.uniform))

    def _reference(self, made: Step) -> Tensor:
        """What outputs are held to: the unedited ones; of emptied texts, the model's average."""
        reference = made.drawn.output
        if not made.emptied.any():
            return reference
        assert self._usual is not None
        wide = made.of_all(made.emptied).reshape(-1, *[1] * (reference.dim() - 1))
        return torch.where(wide, self._usual.to(reference), reference)

    def _logits(self, drawn: Drawn, rows: Sequence[int], each: int) -> Tensor:
        """Every row's logits of its own texts, one row's after the other's."""
        parts = _parts(rows, each).items()
        return self.probe.own_logits(
            {i: self.probe.seen(i, drawn.states(p), drawn.reader_of(p)) for i, p in parts}
        )

    def _outputs(self, made: Step, keep: Tensor) -> Tensor:
        """The outputs when every row's texts are edited at its site.

        Texts of all rows run together where they are edited at one site, where no block can be skipped below
        an edit, and on a GPU, which many small runs would leave idle.
        """
        subject, drawn, parts = self.train.subject, made.drawn, _parts(made.rows, made.each)
        edits = {self.probe.rows[i].edit for i in made.rows}
        if len(edits) > 1 and subject.blocks and keep.device.type != "cuda":
            return torch.cat([self._row_outputs(drawn, keep, i, part) for i, part in parts.items()])
        keep = torch.where(drawn.removable, keep, 1.0)
        if len(edits) == 1:
            (site,) = edits
            edited = mix(keep, drawn.read(site, slice(None)), self._baselines(made))
            return subject.run(drawn.batch, {site: edited}, check=False).output

        def edit_at(site: int) -> Callable[[Tensor], Tensor]:
            here = {i: part for i, part in parts.items() if self.probe.rows[i].edit == site}
            edited = [mix(keep[p], drawn.read(site, p), self.probe.baseline(i)) for i, p in here.items()]
            return lambda state: _put(state, list(here.values()), edited)

        return subject.run(drawn.batch, {site: edit_at(site) for site in edits}, check=False).output

    def _baselines(self, made: Step) -> Tensor:
        """What replaces the states of each text, (texts, 1 or tokens, width)."""
        tokens = made.logits.shape[1]
        rows = [torch.atleast_2d(baseline_at(self.probe.baseline(i), tokens)) for i in made.rows]
        return torch.stack(rows).repeat_interleave(made.each, dim=0)

    def _row_outputs(self, drawn: Drawn, keep: Tensor, row: int, part: slice) -> Tensor:
        edit, baseline = self.probe.rows[row].edit, self.probe.baseline(row)
        batch, state = drawn.batch.take(range(part.start, part.stop)), drawn.read(edit, part)
        return edited_run(self.train.subject, batch, edit, state, keep[part], baseline, check=False)

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
        return torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{what}/{number}".encode()))

    def _texts(self, step: int, generator: torch.Generator) -> Tensor:
        """The texts of a step, (rows, per row), shuffled each epoch."""
        size = self.per_row * len(self.probe.rows)
        epoch, place = divmod(step, self._copies * len(self.train) // size)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch, size))
        return self._dealt(torch.tensor(self._epoch[1][place]), generator)

    def _dealt(self, texts: Tensor, generator: torch.Generator) -> Tensor:
        """The texts of a batch for each row, in random order: (rows, per row). Copies of a text go to
        different rows."""
        start = int(torch.randint(len(texts), (), generator=generator))
        rows = texts.sort().values.roll(start).view(self.per_row, -1).T
        return rows.gather(1, torch.rand(rows.shape, generator=generator, dtype=torch.float32).argsort(1))

    def _shuffled(self, epoch: int, size: int) -> list[list[int]]:
        """An epoch's batches; where padding can be left out, texts of like length go together."""
        generator = self._generator("epoch", epoch)
        order = torch.randperm(len(self.train), generator=generator).repeat(self._copies)
        order = order[: len(order) // size * size]
        if self.train.batch.by_token:
            pools = [pool[self.train.lengths[pool].argsort(stable=True)] for pool in order.split(POOL * size)]
            order = torch.cat(pools)
        batches = order.split(size)
        return [batches[i].tolist() for i in torch.randperm(len(batches), generator=generator).tolist()]

    def judge(self, texts: FrozenTexts | None = None, rows: Sequence[int] | None = None) -> list[Judged]:
        """How hard masks do on the validation texts, or on others."""
        return judge(self.probe, texts or self.validation, rows)

    def calibrate(self) -> None:
        """Set the biases so that hard masks use up the margin on the validation texts."""
        calibrate(self.probe, self.validation, self.settings.margin)


def _parts(rows: Sequence[int], each: int) -> dict[int, slice]:
    """Where each row's texts are."""
    return {row: slice(k * each, (k + 1) * each) for k, row in enumerate(rows)}


def _put(state: Tensor, parts: Sequence[slice], edited: Sequence[Tensor]) -> Tensor:
    """A state with some of its examples replaced."""
    state = state.clone()
    for part, new in zip(parts, edited, strict=True):
        state[part] = new.to(state)
    return state
