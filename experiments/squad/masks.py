"""What a lens's hard masks do to a reader of questions, and what it keeps (DiffMask, section 3.3)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from masklens.diffmask.judging import masked_outputs
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import THRESHOLD
from masklens.diffmask.texts import FrozenTexts
from masklens.files import whole
from masklens.tasks.answers import exact_match, word_f1

from ..measures import bootstrap_counts, mean_under, with_intervals
from .questions import Question

STEPS = 255
"""keep probabilities are kept in so many steps"""


class Masked(NamedTuple):
    """One site's hard masks on every question; each array has the questions first."""

    kept: np.ndarray
    """tokens kept"""
    divergence: np.ndarray
    same: np.ndarray
    """whether the predicted span is the same"""
    exact: np.ndarray
    f1: np.ndarray


def measure(lens: DiffMask, questions: Sequence[Question], seed: int = 0) -> dict[str, Any]:
    """Share masked, spans kept, divergence, EM and F1 at every site by the gates alone (kept where P(kept) >
    0.5), with 95% bootstrap intervals."""
    frozen = FrozenTexts(lens.subject, [q.pair for q in questions], lens.probe.reads, keep_bytes=0)
    before = np.zeros((len(questions), 2))
    sites = {site: Masked(*(np.zeros(len(questions)) for _ in Masked._fields)) for site in lens.sites}
    for rows in frozen.chunks():
        some = [questions[i] for i in rows]
        before[rows] = _measure_chunk(lens, frozen, rows, some, sites)
    samples = bootstrap_counts(len(questions), seed)
    return {
        "questions": len(questions),
        "lens": asdict(lens.settings),
        "before": {"em": float(before[:, 0].mean()), "f1": float(before[:, 1].mean())},
        "sites": [
            _summary(site, m, frozen.lengths.numpy(), lens.settings.margin, samples)
            for site, m in sites.items()
        ],
    }


@torch.no_grad()
def _measure_chunk(
    lens: DiffMask,
    frozen: FrozenTexts,
    rows: Sequence[int],
    questions: Sequence[Question],
    sites: dict[int, Masked],
) -> np.ndarray:
    """Fill in the columns of these rows; returns EM and F1 of the unmasked model, (rows, 2)."""
    probe, task, drawn = lens.probe, lens.subject.task, frozen.draw(rows)
    batch = drawn.batch
    reference = task.predict(drawn.output, batch)
    keeps = (lens.keep(drawn.states()) > THRESHOLD) & batch.valid  # (sites, rows, tokens)
    outputs = masked_outputs(probe, frozen, drawn, dict(enumerate(keeps)))
    for row, keep, output in zip(probe.rows, keeps, outputs, strict=True):
        span = task.predict(output, batch)
        columns = (
            keep.sum(1).cpu().numpy(),
            task.divergence(drawn.output, output).cpu().numpy(),
            (span == reference).all(1).cpu().numpy(),
            *_right(task.describe(span, batch), questions).T,
        )
        for array, column in zip(sites[row.site], columns, strict=True):
            array[rows] = column
    return _right(task.describe(reference, batch), questions)


def _right(answers: Sequence[str], questions: Sequence[Question]) -> np.ndarray:
    """Exact match and F1 of answers: (questions, 2)."""
    return np.array(
        [
            (exact_match(said, q.answers), word_f1(said, q.answers))
            for said, q in zip(answers, questions, strict=True)
        ]
    )


def _summary(site: int, m: Masked, lengths: np.ndarray, margin: float, samples: np.ndarray) -> dict[str, Any]:
    values = {
        "masked": 1 - (samples @ m.kept) / (samples @ lengths),
        "spans_kept": mean_under(samples, m.same),
        "divergence": mean_under(samples, m.divergence),
        "em": mean_under(samples, m.exact),
        "f1": mean_under(samples, m.f1),
    }
    within = bool(m.divergence.mean() <= margin)
    return {"site": site, **with_intervals(values), "ok": within}


class Kept(NamedTuple):
    """What a lens keeps of every question, and the spans that the model predicts."""

    keep: list[np.ndarray]
    """of each question (sites, tokens): P(kept), to 1 / 255"""
    spans: np.ndarray
    """(questions, 2) first and last token"""


def write_kept(lens: DiffMask, questions: Sequence[Question], path: Path) -> dict[str, Any]:
    """Explain every question and write what is kept; returns what it cost beside plain forward passes."""
    frozen = FrozenTexts(lens.subject, [q.pair for q in questions], lens.probe.reads, keep_bytes=0)
    chunks = list(frozen.chunks())
    keep: dict[int, np.ndarray] = {}
    spans = np.zeros((len(questions), 2), dtype=np.int16)
    with lens.subject.frozen(), torch.no_grad():
        for rows in chunks:
            drawn = frozen.draw(rows)
            spans[rows] = lens.subject.task.predict(drawn.output, drawn.batch).cpu().numpy()
            keeps = lens.keep(drawn.states())  # (sites, rows, tokens)
            values = (keeps * STEPS).round().byte().cpu().numpy()
            keep |= {row: values[:, i, : int(frozen.lengths[row])] for i, row in enumerate(rows)}
    columns = np.concatenate([keep[i] for i in range(len(questions))], axis=1)
    with whole(path) as part, part.open("wb") as file:
        np.savez_compressed(file, keep=columns, lengths=frozen.lengths.numpy(), spans=spans)
    return {"questions": len(questions), **_cost(lens, frozen, chunks)}


@torch.no_grad()
def _cost(lens: DiffMask, frozen: FrozenTexts, chunks: Sequence[Sequence[int]]) -> dict[str, float]:
    """Seconds for plain forward passes and for explaining, over the same batches, turn by turn."""
    subject, plain, explained = lens.subject, 0.0, 0.0
    with subject.frozen():
        for rows in chunks:
            batch = frozen.draw(rows).batch
            plain += _seconds(lambda batch=batch: subject.run(batch).output)
            explained += _seconds(lambda batch=batch: _explained(lens, batch))
    return {"seconds_forward": plain, "seconds_explained": explained, "ratio": explained / plain}


def _explained(lens: DiffMask, batch: Any) -> torch.Tensor:
    return lens.keep(lens.subject.states(batch, lens.probe.reads).states)


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work().cpu()
    return time.perf_counter() - start


def read_kept(path: Path) -> Kept:
    with np.load(path) as file:
        ends = file["lengths"].cumsum()[:-1]
        keep = np.split(file["keep"].astype(np.float32) / STEPS, ends, axis=1)
        return Kept(keep, file["spans"])
