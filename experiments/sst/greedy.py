"""From keep probabilities to masks that hold the margin and keep nothing that can go.

Learned masks are nearly hard, not hard: rounded at one half, some texts are over their margin and some keep
a token or two that they could do without. Two steps of plain search, a few forward passes a token, settle
them: the tokens of each text are kept in the order of their probability until the margin holds, and then
single tokens are dropped, the one that costs least first, while it still holds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from masklens.model.batch import Batch
from masklens.model.masking import Baseline, Masked
from masklens.model.subject import Subject

ROWS = 2048
"""masks tried at once"""

Judge = Callable[[Tensor, Tensor], Tensor]
"""from rows of the batch (masks,) and masks (masks, tokens) to divergences (masks,)"""


@torch.no_grad()
def settled(
    subject: Subject, batch: Batch, site: int, baseline: Tensor, probability: Tensor, margin: float
) -> Tensor:
    """Masks (examples, tokens) bool, at least one token kept, from probabilities (examples, tokens).

    A text that is over the margin even as a whole (it cannot be) would keep everything.
    """
    judge = judge_of(subject, batch, site, baseline)
    keep = _shortest_prefix(judge, batch.valid, probability, margin)
    return pruned(judge, keep, margin)


def judge_of(subject: Subject, batch: Batch, site: int, baseline: Tensor) -> Judge:
    """How far the output moves when the states at the site are kept by a mask, else the baseline."""
    reference, states = subject.states(batch, [site])
    masked = Masked(
        subject, batch, Baseline(baseline, site, states[site]), tokens_at_once=ROWS * batch.shape[1]
    )

    def judge(rows: Tensor, keep: Tensor) -> Tensor:
        return masked.read(
            rows, keep, lambda some, _, output: subject.task.divergence(reference[some], output)
        )

    return judge


def _shortest_prefix(judge: Judge, valid: Tensor, probability: Tensor, margin: float) -> Tensor:
    """The fewest most probable tokens of each text with which the margin holds: (examples, tokens)."""
    order = torch.where(valid, probability, -1.0).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(1)  # (examples, tokens): 0 is the most probable
    keep = valid.clone()
    open_texts = torch.arange(len(valid), device=valid.device)
    for size in range(1, valid.shape[1] + 1):
        tried = (rank[open_texts] < size) & valid[open_texts]
        enough = judge(open_texts, tried) <= margin
        keep[open_texts[enough]] = tried[enough]
        open_texts = open_texts[~enough & (valid[open_texts].sum(1) > size)]
        if not len(open_texts):
            break
    return keep


def pruned(judge: Judge, keep: Tensor, margin: float) -> Tensor:
    """Drop single tokens, the one that costs least first, while the margin holds and one is left."""
    keep, open_texts = keep.clone(), torch.arange(len(keep), device=keep.device)
    while len(open_texts := open_texts[keep[open_texts].sum(1) > 1]):
        which, token = keep[open_texts].nonzero(as_tuple=True)
        tried = keep[open_texts[which]]
        tried[torch.arange(len(tried), device=tried.device), token] = False
        cost = torch.full(keep[open_texts].shape, torch.inf, device=keep.device)
        cost[which, token] = judge(open_texts[which], tried)
        least, cheapest = cost.min(1)
        open_texts, cheapest = open_texts[least <= margin], cheapest[least <= margin]
        keep[open_texts, cheapest] = False
    return keep
