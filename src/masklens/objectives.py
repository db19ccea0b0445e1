"""What the constrained trainer minimises: the masks of a lens, learned over a corpus, or of single texts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attribution import Text
from .encoding import Batch, moved
from .errors import TrainingError
from .gates import HardConcrete
from .lagrangian import Diagnostic, Settings, Terms
from .probes import FreeMasks, Probe, mix, sample_keep
from .subject import Run, Subject
from .tasks import Pointing

CHUNK = {"cpu": 64, "cuda": 512}
"""texts of one forward pass where no batch size is given"""
CHUNK_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""and how many tokens at most"""


EMPTIED, USUAL = 16, 1024
"""one text in so many of a step is emptied, to learn what the baselines say; and how many texts the average
output is of"""
CERTAINTY = 2.0
"""standard errors by which a settled lens keeps its margin"""


class FrozenTexts:
    """Texts encoded once, with the model's unedited output and states, kept if they fit.

    States are kept without padding, one text after the other. What does not fit into `keep_bytes` is
    computed again for each batch.
    """

    def __init__(
        self, subject: Subject, texts: Sequence[Text], sites: Sequence[int], keep_bytes: int
    ) -> None:
        self.subject, self.sites = subject, tuple(sites)
        self.batch = subject.encode(texts).to("cpu")
        self.lengths = self.batch.valid.sum(1)
        self._kept: Run | None = None
        one = subject.states(self._batch([int(self.lengths.argmin())]), self.sites)
        self.widths = {site: state.shape[-1] for site, state in one.states.items()}
        each = sum(state.shape[-1] * state.element_size() for state in one.states.values())
        if each * int(self._columns.sum()) <= keep_bytes and one.output.shape[1:] == self._output_shape():
            self._kept = self._compute_all()

    def __len__(self) -> int:
        return len(self.batch)

    def width(self, rows: Sequence[int]) -> int:
        """How many columns the batch of these rows has."""
        return int(self._columns[list(rows)].max())

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return int(self.lengths.max())

    @cached_property
    def _columns(self) -> Tensor:
        """(texts,): how many columns a text needs; what comes after them is padding."""
        if not self.batch.by_token:
            return torch.full((len(self),), self.batch.shape[1])
        attended = self.batch.valid | self.batch.inputs["attention_mask"].bool()
        return (attended * torch.arange(1, attended.shape[1] + 1)).amax(1)

    def draw(self, rows: Sequence[int]) -> tuple[Batch, Run]:
        """The batch of these rows, and its unedited output and states."""
        batch = self._batch(rows)
        if self._kept is None:
            return batch, self.subject.states(batch, self.sites)
        place = moved(self._places(rows, batch.shape[1]), batch.valid.device)
        states = {site: state[place.to(state.device)] for site, state in self._kept.states.items()}
        output = self._kept.output
        return batch, Run(output[moved(torch.tensor(rows), output.device)], states)

    def _places(self, rows: Sequence[int], width: int) -> Tensor:
        """Where the states of these rows are kept: (rows, width); padding is at the end of all."""
        ends, column = self._columns.cumsum(0), torch.arange(width)
        place = (ends - self._columns)[list(rows), None] + column
        return torch.where(column < self._columns[list(rows), None], place, ends[-1])

    def chunks(self, size: int | None = None) -> Iterator[list[int]]:
        """All rows, in order of length, at most `size` at a time; fewer where texts are long."""
        kind = self.subject.device.type
        size, room = size or CHUNK.get(kind, CHUNK["cpu"]), CHUNK_TOKENS.get(kind, CHUNK_TOKENS["cpu"])
        chunk: list[int] = []
        for row in self.lengths.argsort(stable=True).tolist():
            if chunk and (len(chunk) == size or (len(chunk) + 1) * int(self.lengths[row]) > room):
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _batch(self, rows: Sequence[int]) -> Batch:
        return self.batch.take(rows).trimmed().to(self.subject.device)

    def _output_shape(self) -> torch.Size:
        """The shape of the longest text's output: one that grows with the text cannot be kept."""
        longest = int(self.lengths.argmax())
        return self.subject.states(self._batch([longest]), self.sites[:1]).output.shape[1:]

    def _compute_all(self) -> Run:
        kept: Run | None = None
        room = int(self._columns.sum()) + 1  # the last one is padding's
        for rows in self.chunks():
            batch = self._batch(rows)
            run = self.subject.states(batch, self.sites)
            if kept is None:
                states = {k: s.new_zeros(room, s.shape[-1]) for k, s in run.states.items()}
                kept = Run(run.output.new_zeros(len(self), *run.output.shape[1:]), states)
            index = torch.as_tensor(rows, device=run.output.device)
            kept.output[index] = run.output
            place = self._places(rows, batch.shape[1])
            inside = place < room - 1
            for site, state in run.states.items():
                kept.states[site][place[inside].to(state.device)] = state[inside.to(state.device)]
        assert kept is not None
        return kept


def edited_run(
    subject: Subject,
    batch: Batch,
    edit: int,
    state: Tensor,
    keep: Tensor,
    baseline: Tensor,
    check: bool = True,
) -> Tensor:
    """The output after the states at one site are mixed with a baseline: keep (examples, tokens)."""
    everywhere = torch.where(batch.valid, keep, 1.0)
    return subject.run(batch, replace={edit: mix(everywhere, state, baseline)}, check=check).output


@torch.no_grad()
def masked_outputs(
    subject: Subject, probe: Probe, batch: Batch, run: Run, keeps: Tensor, groups: Sequence[int]
) -> Iterator[Tensor]:
    """The output under the masks (rows, examples, tokens) of each of these rows of a probe.

    Where rows share a baseline, only texts whose mask differs from the row before are run again, and texts
    that are kept whole are not run at all.
    """
    for _, alike in groupby(groups, key=probe.baseline_name):
        before, output = torch.ones_like(keeps[0]), run.output
        for group in alike:
            edit = probe.rows[group].edit
            moved = ((keeps[group] != before) & batch.valid).any(1).nonzero()[:, 0]
            if len(moved):
                part = batch if len(moved) == len(batch) else batch.take(moved.tolist())
                state, baseline = run.states[edit][moved], probe.baseline(group)
                anew = edited_run(subject, part, edit, state, keeps[group][moved], baseline)
                output = output.index_copy(0, moved, anew)
            before = keeps[group]
            yield output


class Judged(NamedTuple):
    """How one row's hard masks do on a set of texts."""

    divergence: float
    error: float
    """the standard error of the divergence"""
    kept: float
    agreement: float


class LensObjective:
    """A probe's masks over a corpus, judged on validation texts; one multiplier a row of the probe."""

    def __init__(self, probe: Probe, train: FrozenTexts, validation: FrozenTexts, settings: Settings) -> None:
        self.module, self.train, self.validation, self.settings = probe, train, validation, settings
        self.groups, self.votes, self.pointed = len(probe.rows), probe.votes, probe.pointed
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def weights_of(self, group: int) -> list[Tensor]:
        return self.module.weights_of(group)

    def terms(self, step: int, rank: int, world: int) -> Terms:
        """Each example of the batch is masked at a row of its own, by one of the members, and a few are
        emptied; one run for each edited site."""
        generator = self._generator("step", step)
        rows = self._rows(step)
        if len(rows) < world:
            raise TrainingError(
                f"a step has {len(rows)} texts for {world} processes; give more texts, a larger batch_size, "
                f"or fewer processes"
            )
        mine = slice(rank, None, world)
        batch, (reference, states) = self.train.draw(rows[mine])
        keep, log_keep, chosen = self._masks(step, rows, mine, states, batch.valid, generator)
        every = self._emptied(len(rows), generator)
        # Numbers rather than a mask: what a mask picks has a size that a GPU would have to be asked for.
        emptied, rest = (moved(part[mine].nonzero()[:, 0], keep.device) for part in (every, ~every))
        if self._usual is not None:
            keep = keep.index_fill(0, emptied, 0.0)
            usual = self._usual.to(reference).expand(len(emptied), *reference.shape[1:])
            reference = reference.index_copy(0, emptied, usual)
        output = self._outputs(batch, states, keep, chosen)
        divergence = self.train.subject.task.divergence(reference, output)
        # The mean over processes is that over all emptied texts.
        anchor = divergence[emptied].sum() * world / max(1, int(every.sum()))
        group = moved(chosen, keep.device)[rest]
        lost = self._lost(reference, output, chosen)[rest] if self.pointed else 0.0
        return Terms(log_keep[rest], batch.valid[rest], divergence[rest], group, anchor, lost)

    def _lost(self, reference: Tensor, output: Tensor, chosen: Tensor) -> Tensor:
        """What the last row pays where an output points elsewhere than before: (examples,)."""
        task = self.train.subject.task
        assert isinstance(task, Pointing)
        last = moved(chosen == self.groups - 1, output.device)
        return torch.where(last, self.settings.hold * task.lost(reference, output), 0.0)

    def _masks(
        self,
        step: int,
        rows: Sequence[int],
        mine: slice,
        states: Mapping[int, Tensor],
        valid: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sampled gates and log P(kept), (examples, tokens), and on the CPU the row of the probe they are of,
        for this process's part of a step's texts. Noise is drawn for the whole step."""
        if self.settings.warming(step):
            # log-odds of a share of its own for each example: random masks, to learn baselines with
            share = torch.rand(len(rows), 1, generator=generator)[mine]
            logits = moved(share.logit(eps=1e-2), valid.device).expand(self.groups, *valid.shape)
            if self.pointed:  # its baseline is for what it begins with
                with torch.no_grad():
                    own = self.module.logits(states, valid)[-1:]
                logits = torch.cat([logits[:-1], own])
        else:
            who = (torch.arange(len(rows)) + step * len(rows)) % self.module.members
            logits = self.module.logits_by(states, valid, who[mine])  # (rows, examples, tokens)
        uniform = torch.rand(self.groups, len(rows), self.train.width(rows), generator=generator)
        chosen = self._choice(len(rows), generator)[mine]
        noise = moved(uniform[:, mine, : logits.shape[-1]], logits.device)
        votes = self.module.multiplies and not self.settings.warming(step)
        there = moved(chosen, logits.device)
        keep, log_keep = sample_keep(logits, there, votes, noise, self.settings.straight)
        return keep, log_keep.float(), chosen

    def _emptied(self, count: int, generator: torch.Generator) -> Tensor:
        """Which of a step's texts are emptied, (texts,) bool: some while baselines are learned."""
        learned = any(p.requires_grad for p in self.module.baselines.values())
        some = max(1, count // EMPTIED) if learned and count > 1 and self._usual is not None else 0
        found = torch.zeros(count, dtype=torch.bool)
        found[torch.randperm(count, generator=generator)[:some]] = True
        return found

    @cached_property
    def _usual(self) -> Tensor | None:
        """The model's average output, (1, ...); None where there is none, or where it is not asked for."""
        task = self.train.subject.task
        if not self.settings.anchor or not task.fixed_shape:
            return None
        rows = list(range(0, len(self.train), max(1, len(self.train) // USUAL)))
        some = [self.train.draw(rows[i : i + 64])[1].output for i in range(0, len(rows), 64)]
        return task.average(torch.cat(some))

    def _generator(self, what: str, number: int) -> torch.Generator:
        """For the randomness of one step or epoch. torch's generator uses 32 bits of its seed."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.settings.seed}/{what}/{number}".encode()))

    def _choice(self, count: int, generator: torch.Generator) -> Tensor:
        """A row of the probe for each example of a step: all alike, or later ones more often and the last one
        for half of them."""
        if self.votes and self.settings.deeper:
            weights = torch.arange(1.0, self.groups + 1)
            weights[-1] = weights[:-1].sum().clamp(min=1)
            return torch.multinomial(weights, count, replacement=True, generator=generator)
        return torch.randperm(count, generator=generator) % self.groups

    def _outputs(self, batch: Batch, states: Mapping[int, Tensor], keep: Tensor, chosen: Tensor) -> Tensor:
        """Each example edited as its row, `chosen` on the CPU, says; examples edited at one site run
        together.

        Where no block can be skipped below an edit, one run with all edits is less work than one a site; on
        a GPU it is sooner done, since many small runs leave it idle.
        """
        subject, rows = self.train.subject, self.module.rows
        edits = dict.fromkeys(row.edit for row in rows)
        if len(edits) > 1 and (not subject.blocks or keep.device.type == "cuda"):
            return self._outputs_at_once(batch, states, keep, chosen)
        parts, order = [], []
        for edit in edits:
            here = [row.edit == edit for row in rows]
            index = torch.tensor(here)[chosen].nonzero()[:, 0]
            if len(index):
                baseline = self._baseline(here.index(True), chosen[index])
                part = batch if len(index) == len(batch) else batch.take(index.tolist())
                there = moved(index, keep.device)
                parts.append(
                    edited_run(subject, part, edit, states[edit][there], keep[there], baseline, check=False)
                )
                order.append(index)
        return torch.cat(parts)[moved(torch.cat(order).argsort(), keep.device)]

    def _baseline(self, row: int, chosen: Tensor) -> Tensor:
        """That of a row and, for examples whose row, `chosen` on the CPU, has one of its own, of this one."""
        baseline = self.module.baseline(row)
        if not self.pointed:
            return baseline
        last = moved(chosen == self.groups - 1, baseline.device)
        return torch.where(last[:, None, None], self.module.baseline(self.groups - 1), baseline)

    def _outputs_at_once(
        self, batch: Batch, states: Mapping[int, Tensor], keep: Tensor, chosen: Tensor
    ) -> Tensor:
        subject, rows = self.train.subject, self.module.rows
        everywhere = torch.where(batch.valid, keep, 1.0)
        edited_at = torch.tensor([row.edit for row in rows])[chosen]  # (examples,)

        def edit_at(site: int) -> Callable[[Tensor], Tensor]:
            first = next(i for i, row in enumerate(rows) if row.edit == site)
            here = moved((edited_at == site).nonzero()[:, 0], keep.device)
            edited = mix(everywhere[here], states[site][here], self.module.baseline(first))
            return lambda state: state.index_copy(0, here.to(state.device), edited.to(state))

        edits = {site: edit_at(site) for site in dict.fromkeys(edited_at.tolist())}
        return subject.run(batch, replace=edits, check=False).output

    def _rows(self, step: int) -> list[int]:
        """The step's rows of the corpus, shuffled each epoch."""
        size = min(self.settings.batch_size, len(self.train))
        epoch, place = divmod(step, len(self.train) // size)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch, size))
        return self._epoch[1][place]

    def _shuffled(self, epoch: int, size: int) -> list[list[int]]:
        """An epoch's batches; where padding can be left out, texts of like length go together."""
        generator = self._generator("epoch", epoch)
        order = torch.randperm(len(self.train), generator=generator)[: len(self.train) // size * size]
        if self.train.batch.by_token:
            pools = [pool[self.train.lengths[pool].argsort(stable=True)] for pool in order.split(8 * size)]
            order = torch.cat(pools)
        batches = order.split(size)
        return [batches[i].tolist() for i in torch.randperm(len(batches), generator=generator).tolist()]

    @torch.no_grad()
    def diagnose(self, multipliers: Sequence[float], texts: FrozenTexts | None = None) -> list[Diagnostic]:
        """How hard masks do on the validation texts, or on others."""
        found = self.judge(range(self.groups), texts)
        return [
            Diagnostic(row.site, j.divergence, j.kept, j.agreement, m, j.divergence <= self.settings.margin)
            for row, j, m in zip(self.module.rows, found, multipliers, strict=True)
        ]

    @torch.no_grad()
    def worst(self) -> list[float]:
        """The divergence when everything is dropped, for each row."""
        return [j.divergence for j in self.judge(range(self.groups), nothing=True)]

    @torch.no_grad()
    def judge(
        self, groups: Sequence[int], texts: FrozenTexts | None = None, nothing: bool = False
    ) -> list[Judged]:
        """How these rows' hard masks do on the validation texts or on others, or masks that keep nothing."""
        texts, probe = texts or self.validation, self.module
        subject = texts.subject
        total = torch.zeros(len(groups), 4, dtype=torch.float64, device=subject.device)
        for rows in texts.chunks():
            batch, run = texts.draw(rows)
            keeps = (probe.log_keep(run.states, batch.valid).exp() > (1 if nothing else 0.5)).float()
            for i, output in enumerate(masked_outputs(subject, probe, batch, run, keeps, groups)):
                divergence = subject.task.divergence(run.output, output)
                total[i, 0] += divergence.sum()
                total[i, 1] += divergence.double().square().sum()
                total[i, 2] += (keeps[groups[i]] * batch.valid).sum()
                total[i, 3] += subject.task.agrees(run.output, output, batch).sum()
        count = len(texts)
        means = total.cpu() / torch.tensor([count, count, int(texts.lengths.sum()), count])
        means[:, 1] = ((means[:, 1] - means[:, 0].square()).clamp(min=0) / count).sqrt()
        return [Judged(*row) for row in means.tolist()]

    @torch.no_grad()
    def settle(self) -> list[str]:
        """Open each row's gates by a shift of their bias until it keeps its margin on the validation texts
        with CERTAINTY standard errors to spare, so that it is likely to keep it on others too.

        Rows are taken in order: where votes multiply, a row that stops voting falls back on the row
        before it, which is within its margin already. Returns what was done.
        """
        events = []
        for group, row in enumerate(self.module.rows):
            before = self.judge([group])[0]
            if not self._within(before):
                shift = self._smallest_shift(group)
                after = self.judge([group])[0]
                events.append(
                    f"site {row.site}: gates opened by {shift:.2f} "
                    f"(divergence {before.divergence:.3f} -> {after.divergence:.3f})"
                )
        return events

    def _within(self, judged: Judged) -> bool:
        return judged.divergence + CERTAINTY * judged.error <= self.settings.margin

    def _smallest_shift(self, group: int) -> float:
        """By bisection; a shift of 60 opens any gate, and is taken if nothing less will do."""
        bias = self.module.gate(group).bias
        start, low, high = bias.clone(), 0.0, 60.0
        for _ in range(9):
            middle = (low + high) / 2
            bias.copy_(start + middle)
            within = self._within(self.judge([group])[0])
            low, high = (low, middle) if within else (middle, high)
        bias.copy_(start + high)
        return high


class TextObjective:
    """Free masks over the states of single texts at one site; one multiplier a text (no amortisation).

    Nothing is shared between texts, so a text's result does not depend on the others in the batch.

    Args:
        noise: endless uniform noise (examples, tokens, 1) that depends on the text alone.
        baseline: what replaces a state; (width,) or one that broadcasts to the state.
        learn_baseline: let each text move its own copy of the baseline (Figure 12b); else it is fixed (12c).
    """

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        site: int,
        margin: float,
        noise: Iterator[Tensor],
        baseline: Tensor,
        learn_baseline: bool,
    ) -> None:
        self.subject, self.batch, self.site, self.noise = subject, batch, site, noise
        self.margin = margin
        self.reference, states = subject.states(batch, [site])
        self.state = states[site].detach()
        self.groups, self.votes, self.pointed = len(batch), False, False
        start = baseline.to(self.state).expand_as(self.state)[:, :1].float()
        self.module = FreeMasks(len(batch), batch.shape[1], start, learn_baseline).to(self.state.device)

    def weights_of(self, group: int) -> list[Tensor]:
        return [self.module.values[group]]

    @torch.no_grad()
    def diagnose(self, multipliers: Sequence[float]) -> list[Diagnostic]:
        """How each text does with hard gates; the text itself stands in for held-out data."""
        keep = (self.keep_probability() > 0.5).float()
        divergence, agrees = self._judge(keep)
        share = (keep * self.batch.valid).sum(1) / self.batch.valid.sum(1)
        found = zip(divergence.tolist(), share.tolist(), agrees.tolist(), multipliers, strict=True)
        return [Diagnostic(self.site, d, k, a, m, d <= self.margin) for d, k, a, m in found]

    @torch.no_grad()
    def worst(self) -> list[float]:
        return self._judge(torch.zeros(self.batch.shape, device=self.state.device))[0].tolist()

    def _judge(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Divergence and agreement of each text under given gates."""
        output = self.output(keep)
        agrees = self.subject.task.agrees(self.reference, output, self.batch)
        return self.subject.task.divergence(self.reference, output), agrees.float()

    def terms(self, step: int, rank: int, world: int) -> Terms:
        gate = HardConcrete(self.module.logits(), validate_args=False)
        keep = gate.rsample(uniform=next(self.noise)[..., 0])
        divergence = self.divergence(keep)
        return Terms(gate.log_prob_nonzero(), self.batch.valid, divergence, self._groups)

    def keep_probability(self) -> Tensor:
        """P(kept), (examples, tokens)"""
        return HardConcrete(self.module.logits(), validate_args=False).prob_nonzero()

    def output(self, keep: Tensor) -> Tensor:
        """The output when the states are mixed by `keep` (examples, tokens)."""
        return edited_run(self.subject, self.batch, self.site, self.state, keep, self.module.baselines[0])

    def divergence(self, keep: Tensor) -> Tensor:
        """(examples,)"""
        return self.subject.task.divergence(self.reference, self.output(keep))

    @property
    def _groups(self) -> Tensor:
        return torch.arange(self.groups, device=self.state.device)


class ReinforceObjective(TextObjective):
    """The same objective with Bernoulli gates and the score-function estimator (Williams 1992).

    The divergence's gradient is (divergence - moving average) * grad log P(gates); the multiplier weighs
    it as it weighs the relaxed one.
    """

    DECAY = 0.99
    average: Tensor | None = None

    def keep_probability(self) -> Tensor:
        return self.module.logits().sigmoid()

    def terms(self, step: int, rank: int, world: int) -> Terms:
        logits = self.module.logits()
        keep = (next(self.noise)[..., 0] < logits.sigmoid()).float()
        with torch.no_grad():
            # to 4 digits: what float32 adds beyond depends on the batch, and the optimiser would follow it
            found = self.divergence(keep).round(decimals=4)
            before = found if self.average is None else self.average
            self.average = self.DECAY * before + (1 - self.DECAY) * found
        each = -nn.functional.binary_cross_entropy_with_logits(logits, keep, reduction="none")
        log_prob = (each * self.batch.valid).sum(-1)
        surrogate = found + (found - before) * (log_prob - log_prob.detach())
        return Terms(nn.functional.logsigmoid(logits), self.batch.valid, surrogate, self._groups)
