"""How the hard masks of a probe do on texts, and the bias at which they are within the margin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.masking import edited_run
from .networks import THRESHOLD, Masks, Probe
from .texts import Drawn, FrozenTexts

CERTAINTY = 3.0
"""standard errors by which a calibrated row stays within its margin on validation texts"""
GAP = 0.005
"""biases that keep nearly the same tokens, up to this share more, count as one in calibration"""
REACH = 20.0
"""how far calibration may shift a bias"""


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


@torch.no_grad()
def judge(probe: Masks, texts: FrozenTexts, rows: Sequence[int] | None = None) -> list[Judged]:
    """How the hard masks of a probe's rows do on texts."""
    rows = range(len(probe.rows)) if rows is None else rows
    task, order = texts.subject.task, list(texts.chunks())
    found = []
    for chunk in order:
        drawn = texts.draw(chunk)
        states = drawn.states()
        keeps = {i: (probe.keep_of(i, states, drawn.reader) > THRESHOLD) & drawn.removable for i in rows}
        for i, output in zip(rows, masked_outputs(probe, texts, drawn, keeps), strict=True):
            divergence = task.divergence(drawn.output, output).double()
            agrees = task.agrees(drawn.output, output, drawn.batch).double()
            found.append(torch.stack([divergence, keeps[i].sum(1).double(), agrees]))
    counts = texts.counts[[row for chunk in order for row in chunk]].double()
    each = [torch.cat(found[i :: len(rows)], dim=1).cpu() for i in range(len(rows))]  # (3, texts)
    return [_judged(one, counts) for one in each]


def _judged(values: Tensor, counts: Tensor) -> Judged:
    """Means and standard errors from each text's divergence, tokens kept and agreement, (3, texts)."""
    divergence, tokens, agrees = values
    share = tokens.sum() / counts.sum()
    off = tokens - share * counts  # the share is a ratio of sums: its error is that of this mean
    spread = off.square().sum().sqrt() / counts.sum()
    error = divergence.std(correction=0) / len(counts) ** 0.5
    return Judged(*(float(x) for x in (divergence.mean(), error, share, spread, agrees.mean())))


@torch.no_grad()
def calibrate(probe: Probe, validation: FrozenTexts, margin: float) -> None:
    """Shift the bias of every row's gates so that its hard masks drop as much as the margin allows.

    The margin holds on the validation texts with CERTAINTY standard errors to spare, so that it is likely to
    hold on others too. Of the biases that keep nearly the same tokens the middle one is taken: at the edge a
    needed token would be kept with a probability just above the threshold.
    """
    for row, bias in enumerate(probe.biases):
        _calibrate_row(probe, validation, margin, row, bias)


def _calibrate_row(probe: Probe, validation: FrozenTexts, margin: float, row: int, bias: Tensor) -> None:
    start = bias.clone()

    def judged(shift: float) -> Judged:
        bias.copy_(start + shift)
        return judge(probe, validation, [row])[0]

    first = _least(lambda shift: _surely_within(judged(shift), margin))
    most = judged(first).kept + GAP
    last = _least(lambda shift: judged(shift).kept > most)
    bias.copy_(start + (first + last) / 2)


def _surely_within(judged: Judged, margin: float) -> bool:
    return judged.divergence + CERTAINTY * judged.error <= margin


def _least(holds: Callable[[float], bool]) -> float:
    """The least shift within REACH from which on something holds, found by halving."""
    low, high = -REACH, REACH
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
