"""What a lens's hard masks do to a classifier: at every site, on labelled texts (DiffMask, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..attribution import Text
from ..encoding import Batch
from ..evaluation.ranking import Ranking
from ..evaluation.verifying import enough_to_hold
from ..diffmask.lens import DiffMask
from ..diffmask.objective import FrozenTexts, edited_run, masked_outputs
from ..probes import sample_keep
from ..subject import Run
from .labelled import Labelled

DRAWS = 1000
KEEP = 0.8
"""from which probability on masks held to the margin keep a token: fewer than gates alone, and more where
needed"""
BOUND = 0.05
"""how far each text may move under them, in nats: half of the margin"""
PAPER_BATCH = 64
"""the paper's F1 is that of batches of so many texts, averaged"""


class Hard(NamedTuple):
    """What hard masks do to each text; each array is (texts,)."""

    kept: np.ndarray
    """tokens"""
    prediction: np.ndarray
    divergence: np.ndarray


class Masked(NamedTuple):
    """What one site's masks do."""

    gates: Hard
    """by the gates alone: kept where P(kept) > 0.5"""
    held: Hard
    """kept where P(kept) > `KEEP`; more of texts that move by more than `BOUND`, in order of P(kept), until
    they do not: the constraint of Eq. 2 is one for every text"""
    expected: np.ndarray
    """(texts,): tokens kept in expectation, the sum of P(kept)"""
    sampled: np.ndarray
    """(texts,): the divergence with gates sampled as in training"""


@dataclass(frozen=True)
class Masking:
    """A lens's masks on a set of texts."""

    lengths: np.ndarray
    """(texts,)"""
    prediction: np.ndarray
    """(texts,) of the whole texts"""
    sites: dict[int, Masked]


def mask_texts(lens: DiffMask, texts: Sequence[Text], size: int = 256, seed: int = 0) -> Masking:
    """Run the model on every text as it is, and masked at each site of the lens, one site at a time."""
    frozen = FrozenTexts(lens.subject, texts, lens.probe.reads, keep_bytes=0)
    generator = torch.Generator().manual_seed(seed)
    prediction = np.zeros(len(texts), dtype=int)
    found = {site: _nothing_yet(len(texts)) for site in lens.sites}
    for rows in frozen.chunks(size):
        batch, run = frozen.draw(rows)
        prediction[rows] = lens.subject.task.predict(run.output, batch).cpu().numpy()
        for site, part in _masked_at_each(lens, batch, run, generator):
            for whole, some in zip(_columns(found[site]), _columns(part), strict=True):
                whole[rows] = some
    return Masking(frozen.lengths.numpy(), prediction, found)


def _nothing_yet(texts: int) -> Masked:
    gates, held = (Hard(*(np.zeros(texts, kind) for kind in (int, int, float))) for _ in range(2))
    return Masked(gates, held, np.zeros(texts), np.zeros(texts))


def _columns(masked: Masked) -> list[np.ndarray]:
    return [*masked.gates, *masked.held, masked.expected, masked.sampled]


@torch.no_grad()
def _masked_at_each(
    lens: DiffMask, batch: Batch, run: Run, generator: torch.Generator
) -> Iterator[tuple[int, Masked]]:
    """What masks do to one batch, site after site."""
    subject, probe, valid = lens.subject, lens.probe, batch.valid
    probability = lens.keep(run.states, valid)  # (rows, examples, tokens)
    logits = probe.logits_by(run.states, valid, torch.arange(len(batch)) % probe.members)
    noise = torch.rand(logits.shape, generator=generator).to(logits)
    hard = (probability > 0.5).float()
    outputs = masked_outputs(subject, probe, batch, run, hard, range(len(hard)))
    for i, (row, masked) in enumerate(zip(probe.rows, outputs, strict=True)):
        chosen = torch.full((len(batch),), i, device=logits.device)
        sampled, _ = sample_keep(logits, chosen, probe.multiplies, noise)
        gated = edited_run(subject, batch, row.edit, run.states[row.edit], sampled, probe.baseline(i))
        gates = _hard(lens, batch, run, masked, (hard[i] * valid).sum(1).cpu().numpy())
        yield (
            row.site,
            Masked(
                gates,
                _held(lens, batch, run, i, probability[i].cpu().numpy()),
                (probability[i] * valid).sum(1).cpu().numpy(),
                subject.task.divergence(run.output, gated).cpu().numpy(),
            ),
        )


def _hard(lens: DiffMask, batch: Batch, run: Run, output: Tensor, kept: np.ndarray) -> Hard:
    task = lens.subject.task
    prediction, divergence = task.predict(output, batch), task.divergence(run.output, output)
    return Hard(kept.astype(int), prediction.cpu().numpy(), divergence.cpu().numpy())


def _held(lens: DiffMask, batch: Batch, run: Run, row: int, probability: np.ndarray) -> Hard:
    """Masks with which every text moves by at most `BOUND`."""
    subject, edit = lens.subject, lens.probe.rows[row].edit
    ranking = Ranking.of(probability, batch.valid.cpu().numpy())
    output = run.output.clone()

    def holds(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        some = torch.from_numpy(rows).to(output.device)
        part, keep = batch.take(rows.tolist()), torch.from_numpy(ranking.first(counts, rows)).to(output)
        anew = edited_run(subject, part, edit, run.states[edit][some], keep, lens.probe.baseline(row))
        there = subject.task.divergence(run.output[some], anew) <= BOUND
        output[some[there]] = anew[there]
        return there.cpu().numpy()

    said = ((probability > KEEP) & ranking.removable).sum(1)
    already = holds(np.arange(len(batch)), said)
    return _hard(lens, batch, run, output, enough_to_hold(said, ranking.counts, already, holds))


def measure(lens: DiffMask, data: Labelled, seed: int = 0) -> dict[str, Any]:
    """Accuracy, F1, agreement, divergence and share masked at every site, with 95% bootstrap intervals, where
    every text is held to `BOUND`; the same of gates alone under "gates".

    "summary" is the deepest site for masks over inputs, and the mean over sites for masks over states.
    """
    masking = mask_texts(lens, data.texts, seed=seed)
    gold, classes = np.array(data.labels), len(lens.subject.task.labels)  # type: ignore[attr-defined]
    samples = resampled(len(gold), seed)
    before = {
        "accuracy": float((masking.prediction == gold).mean()),
        "f1_macro": float(macro_f1(masking.prediction, gold, classes)[0]),
        "f1_batch": batch_f1(masking.prediction, gold, classes),
    }

    def measured(pick: Callable[[Masked], Hard]) -> dict[str, Any]:
        sites = [
            _site(site, pick(m), masking, gold, classes, lens.settings.margin, samples)
            for site, m in masking.sites.items()
        ]
        return {"sites": sites, "summary": summarise(sites if lens.over == "states" else sites[-1:])}

    gates = measured(lambda m: m.gates)
    for found, m in zip(gates["sites"], masking.sites.values(), strict=True):
        found["masked_expected"] = float(1 - m.expected.sum() / masking.lengths.sum())
        found["divergence_sampled"] = float(m.sampled.mean())
    about = {"texts": len(gold), "keep": KEEP, "bound": BOUND, "before": before}
    return {**about, **measured(lambda m: m.held), "gates": gates}


def _site(
    site: int,
    hard: Hard,
    masking: Masking,
    gold: np.ndarray,
    classes: int,
    margin: float,
    samples: np.ndarray,
) -> dict[str, Any]:
    every = np.concatenate([np.ones((1, len(gold))), samples])  # row 0: each text once
    hit, hit_before = (hard.prediction == gold).astype(float), masking.prediction == gold
    values = {
        "masked": 1 - (every @ hard.kept) / (every @ masking.lengths),
        "agreement": mean_under(every, hard.prediction == masking.prediction),
        "divergence": mean_under(every, hard.divergence),
        "accuracy": mean_under(every, hit),
        "accuracy_change": mean_under(every, hit - hit_before),
        "f1_macro": macro_f1(hard.prediction, gold, classes, every),
    }
    found: dict[str, Any] = {"site": site}
    for name, column in values.items():
        found[name] = float(column[0])
        found[f"{name}_interval"] = np.quantile(column[1:], [0.025, 0.975]).tolist()
    return found | {
        "f1_batch": batch_f1(hard.prediction, gold, classes),
        "ok": bool(hard.divergence.mean() <= margin),
    }


def summarise(sites: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over sites, the worst of them, and whether all are within their margin."""
    names = ("masked", "agreement", "divergence", "accuracy", "accuracy_change", "f1_macro", "f1_batch")
    means = {name: float(np.mean([site[name] for site in sites])) for name in names}
    return means | {
        "worst_agreement": min(site["agreement"] for site in sites),
        "worst_divergence": max(site["divergence"] for site in sites),
        "worst_accuracy_change": min(site["accuracy_change"] for site in sites),
        "ok": all(site["ok"] for site in sites),
    }


def resampled(texts: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """How often each text is drawn in each bootstrap sample: (draws, texts)."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(texts, np.full(texts, 1 / texts), size=draws).astype(float)


def mean_under(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of one value a text in each sample: (samples,)."""
    return counts @ values.astype(float) / counts.sum(1)


def macro_f1(
    prediction: np.ndarray, gold: np.ndarray, classes: int, counts: np.ndarray | None = None
) -> np.ndarray:
    """The mean over classes of F1, in each sample (samples, texts): (samples,). A class that is neither
    there nor predicted counts as 0."""
    counts = np.ones((1, len(gold))) if counts is None else counts
    each = np.arange(classes)
    said, true = prediction[:, None] == each, gold[:, None] == each  # (texts, classes)
    both, total = counts @ (said & true), counts @ said + counts @ true
    return np.divide(2 * both, total, out=np.zeros_like(total), where=total > 0).mean(1)


def batch_f1(prediction: np.ndarray, gold: np.ndarray, classes: int, size: int = PAPER_BATCH) -> float:
    """The paper's F1: macro F1 of batches of 64 texts, averaged over batches.

    As in the published code, a class that is absent from a batch has recall 1 and one that is never
    predicted has precision 0, so that its F1 is 0 there.
    """
    starts = range(0, len(gold), size)
    return float(
        np.mean([_one_batch_f1(prediction[i : i + size], gold[i : i + size], classes).mean() for i in starts])
    )


def _one_batch_f1(prediction: np.ndarray, gold: np.ndarray, classes: int) -> np.ndarray:
    """(classes,)"""
    each = np.arange(classes)
    said, true = prediction[:, None] == each, gold[:, None] == each
    both = (said & true).sum(0).astype(float)
    precision = np.divide(both, said.sum(0), out=np.zeros(classes), where=said.any(0))
    recall = np.divide(both, true.sum(0), out=np.ones(classes), where=true.any(0))
    total = precision + recall
    return np.divide(2 * precision * recall, total, out=np.zeros(classes), where=total > 0)
