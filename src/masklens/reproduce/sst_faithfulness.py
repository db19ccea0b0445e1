"""What a lens's hard masks do to a classifier: at every site, on labelled texts (DiffMask, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..attribution import Text
from ..encoding import Batch
from ..methods.diffmask import DiffMask
from ..objectives import FrozenTexts, edited_run, masked_outputs
from ..probes import sample_keep
from ..subject import Run
from .labelled import Labelled

DRAWS = 1000
PAPER_BATCH = 64
"""the paper's F1 is that of batches of so many texts, averaged"""


class Masked(NamedTuple):
    """What one site's masks do to each text; each array is (texts,)."""

    kept: np.ndarray
    """tokens that hard masks keep (P(kept) > 0.5)"""
    expected: np.ndarray
    """tokens kept in expectation, the sum of P(kept)"""
    prediction: np.ndarray
    divergence: np.ndarray
    """with hard masks"""
    sampled: np.ndarray
    """with gates sampled as in training"""


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
    found = {site: Masked(*(np.zeros(len(texts), t) for t in (int, float, int, float, float)))
             for site in lens.sites}  # fmt: skip
    for rows in frozen.chunks(size):
        batch, run = frozen.draw(rows)
        prediction[rows] = lens.subject.task.predict(run.output, batch).cpu().numpy()
        for site, columns in _masked_at_each(lens, batch, run, generator):
            for whole, part in zip(found[site], columns, strict=True):
                whole[rows] = part
    return Masking(frozen.lengths.numpy(), prediction, found)


@torch.no_grad()
def _masked_at_each(
    lens: DiffMask, batch: Batch, run: Run, generator: torch.Generator
) -> Iterator[tuple[int, Masked]]:
    """The columns of `Masked` for one batch, site after site."""
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
        columns = (
            (hard[i] * valid).sum(1),
            (probability[i] * valid).sum(1),
            subject.task.predict(masked, batch),
            subject.task.divergence(run.output, masked),
            subject.task.divergence(run.output, gated),
        )
        yield row.site, Masked(*(column.cpu().numpy() for column in columns))


def measure(lens: DiffMask, data: Labelled, seed: int = 0) -> dict[str, Any]:
    """Accuracy, F1, agreement, divergence and share masked at every site, with 95% bootstrap intervals.

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
    margin = lens.settings.margin
    sites = [_site(site, m, masking, gold, classes, margin, samples) for site, m in masking.sites.items()]
    return {
        "texts": len(gold),
        "before": before,
        "sites": sites,
        "summary": summarise(sites if lens.over == "states" else sites[-1:], before),
    }


def _site(
    site: int,
    m: Masked,
    masking: Masking,
    gold: np.ndarray,
    classes: int,
    margin: float,
    samples: np.ndarray,
) -> dict[str, Any]:
    every = np.concatenate([np.ones((1, len(gold))), samples])  # row 0: each text once
    hit, hit_before = (m.prediction == gold).astype(float), masking.prediction == gold
    values = {
        "masked": 1 - (every @ m.kept) / (every @ masking.lengths),
        "agreement": mean_under(every, m.prediction == masking.prediction),
        "divergence": mean_under(every, m.divergence),
        "accuracy": mean_under(every, hit),
        "accuracy_change": mean_under(every, hit - hit_before),
        "f1_macro": macro_f1(m.prediction, gold, classes, every),
    }
    found: dict[str, Any] = {"site": site}
    for name, column in values.items():
        found[name] = float(column[0])
        found[f"{name}_interval"] = np.quantile(column[1:], [0.025, 0.975]).tolist()
    return found | {
        "f1_batch": batch_f1(m.prediction, gold, classes),
        "masked_expected": float(1 - m.expected.sum() / masking.lengths.sum()),
        "divergence_sampled": float(m.sampled.mean()),
        "ok": bool(m.divergence.mean() <= margin),
    }


def summarise(sites: Sequence[dict[str, Any]], before: dict[str, float]) -> dict[str, Any]:
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
