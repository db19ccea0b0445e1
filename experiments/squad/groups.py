"""What a reader of questions keeps: question, passage and answer, and parts of speech (Figures 7 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from masklens import analysis
from masklens.attribution import Attribution
from masklens.bootstrap import interval
from masklens.model.batch import Batch
from masklens.model.subject import Subject

from .masks import Kept
from .questions import Question, gold_spans

GROUPS = ("question", "passage", "gold", "gold_wrong", "gold_ends", "gold_ends_wrong")


def attributions(subject: Subject, questions: Sequence[Question], kept: Kept, over: str) -> list[Attribution]:
    """Records of what a lens keeps, without running the model again."""
    batch = subject.encode([q.pair for q in questions])
    answers = subject.task.describe(torch.from_numpy(kept.spans).long(), batch)
    return [
        Attribution(
            text=q.pair,
            tokens=batch.tokens[i],
            offsets=batch.offsets[i],
            special=tuple(batch.special[i][batch.valid[i]].tolist()),
            segments=tuple(batch.segments[i][batch.valid[i]].tolist()),
            sites=tuple(subject.sites),
            scores=kept.keep[i],
            prediction=answers[i],
            target=answers[i],
            method="diffmask",
            settings={"over": over},
            merge="max",
        )
        for i, q in enumerate(questions)
    ]


def group_means(subject: Subject, questions: Sequence[Question], kept: Kept) -> dict[str, Any]:
    """Figure 7: for each group the mean over questions of the share kept at each site.

    A gold answer counts with all its tokens ("gold") or with its first and last ("gold_ends", as in the
    paper); of several the one that is kept most counts. Only questions whose answers occur once in the
    passage have gold groups; "wrong" are those whose predicted span is none of them.
    """
    batch = subject.encode([q.pair for q in questions])
    rows: dict[str, list[np.ndarray]] = {name: [] for name in GROUPS}
    for i, question in enumerate(questions):
        for name, value in _groups_of(batch, i, question, kept).items():
            rows[name].append(value)
    return {name: _mean(values) for name, values in rows.items() if values}


def _groups_of(batch: Batch, i: int, question: Question, kept: Kept) -> dict[str, np.ndarray]:
    """The means (sites,) of one question's groups."""
    keep = kept.keep[i]
    plain = (batch.valid[i] & ~batch.special[i])[: keep.shape[1]].numpy()
    segments = batch.segments[i][: keep.shape[1]].numpy()
    found = {"question": keep[:, plain & (segments == 0)].mean(1)}
    found["passage"] = keep[:, plain & (segments == 1)].mean(1)
    golds = gold_spans(batch, i, question) if question.once else []
    if golds:
        found["gold"] = np.max([keep[:, a : b + 1].mean(1) for a, b in golds], axis=0)
        found["gold_ends"] = np.max([keep[:, [a, b]].mean(1) for a, b in golds], axis=0)
        if tuple(kept.spans[i]) not in golds:
            found |= {"gold_wrong": found["gold"], "gold_ends_wrong": found["gold_ends"]}
    return found


def _mean(values: Sequence[np.ndarray]) -> dict[str, Any]:
    """The mean over questions at each site, with its 95% bootstrap interval."""
    table = np.stack(values)  # (questions, sites)
    intervals = [list(interval(column)) for column in table.T]
    return {"questions": len(table), "by_site": table.mean(0).tolist(), "intervals": intervals}


def parts_of_speech(found: Sequence[Attribution], nlp: Any = None) -> dict[str, Any]:
    """Figure 14: the number of layers that keep a token by part of speech, for question and passage apart."""
    nlp = nlp or analysis.load_spacy()
    return {
        name: analysis.by_part_of_speech(found, nlp=nlp, segment=segment).to_dict()
        for segment, name in enumerate(("question", "passage"))
    }
