"""The hiding and revealing games for one method on SST-2's 872 sentences, minilm-sst2: packed and plain.

The plain way runs every sentence at every step of both games with its hidden tokens masked and out of
attention, sorted by length, in batches of the same number of tokens. Both must give the same curves. They
take turns, a slice of the sentences at a time, so that a busy machine slows both alike.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from masklens import Subject
from masklens.encoding import Batch
from masklens.evaluation.faithfulness import STEPS, hiding, revealing
from masklens.evaluation.ranking import Ranking
from masklens.evaluation.views import Views, cut

from .reference import Missing, checkpoint, sst2_dev

TOKENS_AT_ONCE = 1024
SLICES = 8


def main(limit: int | None = None) -> str:
    try:
        folder, (texts, labels) = checkpoint("minilm-sst2"), sst2_dev()
    except Missing as reason:
        return f"not run: {reason}"
    subject = Subject.from_pretrained(folder)
    texts, labels = texts[:limit], labels[:limit]
    seconds = {_packed: 0.0, _plain: 0.0}
    gap = 0.0
    for start in range(SLICES):
        some = texts[start::SLICES], labels[start::SLICES]
        curves = {}
        for way in (_packed, _plain) if start % 2 else (_plain, _packed):
            begin = time.perf_counter()
            curves[way] = way(subject, *some)
            seconds[way] += time.perf_counter() - begin
        gap = max(gap, float(np.abs(curves[_packed] - curves[_plain]).max()))
    rows = [
        f"{len(texts)} sentences, {2 * len(STEPS)} steps, one method",
        f"plain   {seconds[_plain]:8.1f} s",
        f"packed  {seconds[_packed]:8.1f} s",
        f"ratio   {seconds[_packed] / seconds[_plain]:8.2f}   (at most 0.6)",
        f"largest difference of the curves {gap:.4f}",
    ]
    return "\n".join(rows)


def random_ranking(batch: Batch) -> Ranking:
    """The same random order of the same texts."""
    scores = np.random.default_rng(0).random(batch.shape)
    return Ranking.of(scores, (batch.valid & ~batch.special).numpy())


def _packed(subject: Subject, texts: list[str], labels: list[int]) -> np.ndarray:
    views = Views(subject, texts, labels=labels, tokens_at_once=TOKENS_AT_ONCE)
    ranking = random_ranking(views.batch)
    return np.stack([revealing(views, ranking).curve, hiding(views, ranking).curve])


def _plain(subject: Subject, texts: list[str], labels: list[int]) -> np.ndarray:
    everything = subject.encode(texts)
    ranking = random_ranking(everything)
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
