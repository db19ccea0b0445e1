"""What a lens's hard masks do to a classifier: at every site, on labelled texts (DiffMask, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from masklens.attribution import Text
from masklens.diffmask.judging import masked_outputs
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import THRESHOLD
from masklens.diffmask.texts import Drawn, FrozenTexts
from masklens.evaluation.ranking import Ranking
from masklens.evaluation.verify import enough_to_hold
from masklens.model.masking import edited_run

from ..labelled import Labelled
from ..measures import bootstrap_counts, mean_under, with_intervals

KEEP = 0.8
"""from which probability on guarded masks keep a token: fewer than gates alone, and more where needed"""
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
    guarded: Hard
    """kept where P(kept) > `KEEP`; more of texts that move by more than `BOUND`, in order of P(kept), until
    they do not: the constraint of Eq. 2 is one for every text"""


@dataclass(frozen=True)
class Masking:
    """A lens's masks on a set of texts."""

    lengths: np.ndarray
    """(texts,)"""
    prediction: np.ndarray
    """(texts,) of the whole texts"""
    sites: dict[int, Masked]


@torch.no_grad()
def mask_texts(lens: DiffMask, texts: Sequence[Text]) -> Masking:
    """Run the model on every text as it is, and masked at each site of the lens, one site at a time."""
    frozen = FrozenTexts(lens.subject, texts, lens.probe.reads, keep_bytes=0)
    prediction = np.zeros(len(texts), dtype=int)
    found = {site: _nothing_yet(len(texts)) for site in lens.sites}
    for rows in frozen.chunks():
        drawn = frozen.draw(rows)
        prediction[rows] = lens.subject.task.predict(drawn.output, drawn.batch).cpu().numpy()
        for site, part in _masked_at_each(lens, frozen, drawn):
            for whole, some in zip(_columns(found[site]), _columns(part), strict=True):
                whole[rows] = some
    return Masking(frozen.lengths.numpy(), prediction, found)


def _nothing_yet(texts: int) -> Masked:
    return Masked(*(Hard(*(np.zeros(texts, kind) for kind in (int, int, float))) for _ in Masked._fields))


def _columns(masked: Masked) -> list[np.ndarray]:
    return [*masked.gates, *masked.guarded]


def _masked_at_each(lens: DiffMask, texts: FrozenTexts, drawn: Drawn) -> Iterator[tuple[int, Masked]]:
    """What masks do to some texts, site after site."""
    probability = lens.keep(drawn.states())  # (rows, examples, tokens)
    hard = (probability > THRESHOLD) & drawn.batch.valid
    outputs = masked_outputs(lens.probe, texts, drawn, dict(enumerate(hard)))
    for i, (site, output) in enumerate(zip(lens.sites, outputs, strict=True)):
        gates = _hard(lens, drawn, output, hard[i].sum(1).cpu().numpy())
        yield site, Masked(gates, _guarded(lens, drawn, i, probability[i].cpu().numpy()))


def _hard(lens: DiffMask, drawn: Drawn, output: Tensor, kept: np.ndarray) -> Hard:
    task = lens.subject.task
    prediction, divergence = task.predict(output, drawn.batch), task.divergence(drawn.output, output)
    return Hard(kept.astype(int), prediction.cpu().numpy(), divergence.cpu().numpy())


def _guarded(lens: DiffMask, drawn: Drawn, row: int, probability: np.ndarray) -> Hard:
    """Masks with which every text moves by at most `BOUND`."""
    subject, batch, edit = lens.subject, drawn.batch, lens.probe.rows[row].edit
    state, baseline = drawn.read(edit, slice(None)), lens.probe.baseline(row)
    ranking = Ranking.of(probability, batch.valid.cpu().numpy())
    output = drawn.output.clone()

    def holds(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        some = torch.from_numpy(rows).to(output.device)
        part, keep = batch.take(rows.tolist()), torch.from_numpy(ranking.first(counts, rows)).to(output)
        anew = edited_run(subject, part, edit, state[some], keep, baseline)
        there = subject.task.divergence(drawn.output[some], anew) <= BOUND
        output[some[there]] = anew[there]
        return there.cpu().numpy()

    said = ((probability > KEEP) & ranking.removable).sum(1)
    already = holds(np.arange(len(batch)), said)
    return _hard(lens, drawn, output, enough_to_hold(said, ranking.counts, already, holds))


def measure(lens: DiffMask, data: Labelled, seed: int = 0) -> dict[str, Any]:
    """Accuracy, F1, agreement, divergence and share masked at every site by the gates alone, with 95%
    bootstrap intervals; the same where every text is held to `BOUND` under "guarded".

    "summary" is the deepest site for masks over inputs, and the mean over sites for masks over states.
    """
    masking = mask_texts(lens, data.texts)
    gold, classes = np.array(data.labels), len(lens.subject.task.labels)  # type: ignore[attr-defined]
    samples = bootstrap_counts(len(gold), seed)
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

    guarded = {"keep": KEEP, "bound": BOUND, **measured(lambda m: m.guarded)}
    about = {"texts": len(gold), "lens": asdict(lens.settings), "before": before}
    return {**about, **measured(lambda m: m.gates), "guarded": guarded}


def _site(
    site: int,
    hard: Hard,
    masking: Masking,
    gold: np.ndarray,
    classes: int,
    margin: float,
    samples: np.ndarray,
) -> dict[str, Any]:
    hit, hit_before = (hard.prediction == gold).astype(float), masking.prediction == gold
    values = {
        "masked": 1 - (samples @ hard.kept) / (samples @ masking.lengths),
        "agreement": mean_under(samples, hard.prediction == masking.prediction),
        "divergence": mean_under(samples, hard.divergence),
        "accuracy": mean_under(samples, hit),
        "accuracy_change": mean_under(samples, hit - hit_before),
        "f1_macro": macro_f1(hard.prediction, gold, classes, samples),
    }
    return {
        "site": site,
        **with_intervals(values),
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
