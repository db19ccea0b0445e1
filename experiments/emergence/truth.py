"""What each layer can know: supervised probes that find the relevant words from the states, and their
masks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from masklens import Subject
from masklens.diffmask.judging import calibrate, judge
from masklens.diffmask.networks import SCALE, THRESHOLD, Probe, rows_for
from masklens.diffmask.published import PublishedProbe
from masklens.diffmask.texts import FrozenTexts
from masklens.model.masking import mix

from .planted import Examples

STEPS, BASELINE_STEPS, BATCH = 1500, 1000, 64
MEMORY = 2 * 10**9


class AtSite(NamedTuple):
    """Measures of hard masks at one site, on texts that were not used for training."""

    site: int
    recall: float
    """share of the irrelevant words that are dropped"""
    false: float
    """share of the relevant words that are dropped"""
    divergence: float


def frozen(subject: Subject, examples: Examples, sites: tuple[int, ...]) -> FrozenTexts:
    return FrozenTexts(subject, examples.texts, sites, MEMORY)


@torch.no_grad()
def measure(probe: Probe | PublishedProbe, subject: Subject, examples: Examples) -> list[AtSite]:
    """Compare a probe's hard masks with the relevant words. [CLS] is left out."""
    texts = frozen(subject, examples, probe.reads)
    drawn = texts.draw(list(range(len(texts))))
    dropped = probe.keep(drawn.states()).cpu()[:, :, 1:] <= THRESHOLD  # (sites, texts, words)
    relevant = examples.relevant
    return [
        AtSite(
            row.site,
            float(drop[~relevant].float().mean()),
            float(drop[relevant].float().mean()),
            j.divergence,
        )
        for row, drop, j in zip(probe.rows, dropped, judge(probe, texts), strict=True)
    ]


def supervised(subject: Subject, train: Examples, validation: Examples, margin: float, seed: int) -> Probe:
    """Gates that are trained with the relevant words as labels, with a baseline learned for the true masks,
    and calibrated to the margin like the gates of a lens."""
    rows = rows_for("inputs", subject.sites)
    texts, held = (frozen(subject, part, subject.sites) for part in (train, validation))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = Probe(rows, texts.widths, hidden=64).to(subject.device)
    first = texts.some_states()
    probe.fit_statistics(first.states, first.usual)
    generator = torch.Generator().manual_seed(seed)
    with subject.frozen():
        _learn_baseline(probe, texts, train.relevant, generator)
        _learn_relevance(probe, texts, train.relevant, generator)
        calibrate(probe, held, margin)
    return probe.eval().requires_grad_(False)


def _draw(texts: FrozenTexts, generator: torch.Generator) -> Tensor:
    return torch.randint(len(texts), (BATCH,), generator=generator)


def _learn_baseline(probe: Probe, texts: FrozenTexts, relevant: Tensor, generator: torch.Generator) -> None:
    """Learn the baseline: a vector that can replace any number of irrelevant words without changing the
    output."""
    subject = texts.subject
    baseline = texts.some_states().first_baseline(0).clone().requires_grad_()
    optimizer = torch.optim.Adam([baseline], lr=0.1 * texts.some_states().spread(0))
    for _ in range(BASELINE_STEPS):
        index = _draw(texts, generator)
        drawn = texts.draw(index.tolist())
        share = 2 * torch.rand(BATCH, 1, generator=generator)  # in half of the texts all are replaced
        gone = ~relevant[index] & (torch.rand(relevant[index].shape, generator=generator) < share)
        keep = F.pad((~gone).float(), (1, 0), value=1.0).to(subject.device)
        output = subject.run(drawn.batch, {0: mix(keep, drawn.read(0, slice(None)), baseline)}).output
        optimizer.zero_grad()
        subject.task.divergence(drawn.output, output).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for one in probe.baselines:
            one.copy_(baseline)


def _learn_relevance(probe: Probe, texts: FrozenTexts, relevant: Tensor, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(probe.gates.parameters(), lr=3e-3 / SCALE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 3e-4 * min(1.0, 0.1 + 2 * (1 - step / STEPS))
        index = _draw(texts, generator)
        states = texts.draw(index.tolist()).states()
        wanted = F.pad(relevant[index].float(), (1, 0), value=1.0).to(texts.subject.device)
        logits = torch.stack([probe.logits(i, states) for i in range(len(probe.rows))])
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, wanted.expand_as(logits)).backward()
        optimizer.step()
