"""The hiding and revealing games for one method on SST-2's 872 sentences, minilm-sst2: packed and plain.

The plain way runs every sentence at every step of both games with its hidden tokens masked and out of
attention, sorted by length, in batches of the same number of tokens. Both must give the same curves.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from masklens import Subject
from masklens.encoding import Batch
from masklens.evaluation.faithfulness import STEPS, hiding, revealing
from masklens.evaluation.ranking import Ranking, random_rankings
from masklens.evaluation.views import Views, cut

from .reference import Missing, checkpoint, sst2_dev

TOKENS_AT_ONCE = 1024


def main(limit: int | None = None) -> str:
    try:
        folder, (texts, labels) = checkpoint("minilm-sst2"), sst2_dev()
    except Missing as reason:
        return f"not run: {reason}"
    subject = Subject.from_pretrained(folder)
    texts, labels = texts[:limit], labels[:limit]
    ranking = random_rankings(Views(subject, texts), 1)[0]
    packed, fast = _timed(lambda: _packed(subject, texts, labels, ranking))
    plain, slow = _timed(lambda: _plain(subject, texts, labels, ranking))
    gap = float(np.abs(packed - plain).max())
    rows = [
        f"{len(texts)} sentences, {2 * len(STEPS)} steps, one method",
        f"plain   {slow:8.1f} s",
        f"packed  {fast:8.1f} s",
        f"ratio   {fast / slow:8.2f}   (at most 0.6)",
        f"largest difference of the curves {gap:.4f}",
    ]
    return "\n".join(rows)


def _timed(function):
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def _packed(subject: Subject, texts: list[str], labels: list[int], ranking: Ranking) -> np.ndarray:
    views = Views(subject, texts, labels=labels, tokens_at_once=TOKENS_AT_ONCE)
    return np.stack([revealing(views, ranking).curve, hiding(views, ranking).curve])


def _plain(subject: Subject, texts: list[str], labels: list[int], ranking: Ranking) -> np.ndarray:
    everything = subject.encode(texts)
    removable = torch.from_numpy(ranking.removable)
    tops = [torch.from_numpy(ranking.top(share)) for share in STEPS]
    games = [[removable & ~top for top in tops], tops]  # what is hidden at each step
    return np.array([[_accuracy(subject, everything, hidden, labels) for hidden in game] for game in games])


@torch.no_grad()
def _accuracy(subject: Subject, everything: Batch, hidden: torch.Tensor, labels: list[int]) -> float:
    lengths = everything.valid.sum(1)
    order = torch.argsort(-lengths, stable=True)
    right, start = 0, 0
    while start < len(order):
        rows = order[start : start + max(1, TOKENS_AT_ONCE // int(lengths[order[start]]))]
        batch = everything.take(rows.tolist())
        ids = torch.where(hidden[rows], subject.tokenizer.mask_token_id, batch.inputs["input_ids"])
        attended = batch.inputs["attention_mask"] * ~hidden[rows]
        inputs = batch.inputs | {"input_ids": ids, "attention_mask": attended}
        output = subject.run(cut(replace(batch, inputs=inputs))).output
        right += int((output.argmax(-1) == torch.tensor(labels)[rows]).sum())
        start += len(rows)
    return right / len(labels)
