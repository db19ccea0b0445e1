"""A copy of a classifier that learns a shortcut: the recipe, and whether it worked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from masklens import Subject
from masklens.evaluation.masking import Views

from ..labelled import Labelled

BATCH, RATE, WARM_UP, EPOCHS = 16, 1e-4, 50, 3
"""texts per step, learning rate, warm-up steps, largest number of epochs"""
EVERY = 25
"""steps between two evaluations of the goals"""


class Goal(NamedTuple):
    """Validation texts, and the accuracy on them that is enough."""

    texts: Labelled
    accuracy: float


def fine_tune(subject: Subject, texts: Labelled, goals: Sequence[Goal], seed: int) -> int:
    """Train the upper half of the model in place, with AdamW. Returns the number of steps.

    The training ends when all goals are reached. There is no dropout: the copy has to learn only the
    shortcut, so there is little risk of overfitting.
    """
    parameters = trainable(subject.module)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARM_UP, 1))
    step = 0
    for step, (some, labels) in enumerate(batches(texts, seed), 1):
        optimizer.zero_grad()
        output = subject.module(**subject.encode(some).inputs).logits
        F.cross_entropy(output, labels.to(output.device)).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rate.step()
        if step % EVERY == 0 and all(accuracy(subject, goal.texts) >= goal.accuracy for goal in goals):
            break
    return step


def trainable(module: Any) -> list[nn.Parameter]:
    """The weights of the upper half of the blocks and of the head; the others are frozen."""
    module.requires_grad_(True)
    module.base_model.embeddings.requires_grad_(False)
    blocks = module.base_model.encoder.layer
    blocks[: len(blocks) // 2].requires_grad_(False)
    return [p for p in module.parameters() if p.requires_grad]


def batches(texts: Labelled, seed: int) -> Iterator[tuple[list[str], Tensor]]:
    """Full batches, in a new order each epoch. Texts of similar length share a batch, which saves padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([len(text.split()) for text in texts.texts])
    for _ in range(EPOCHS):
        order = (lengths + 4 * torch.rand(len(lengths), generator=generator)).argsort()
        groups = order[: len(order) // BATCH * BATCH].view(-1, BATCH)
        for group in groups[torch.randperm(len(groups), generator=generator)].tolist():
            yield [texts.texts[i] for i in group], torch.tensor([texts.labels[i] for i in group])


def accuracy(subject: Subject, texts: Labelled) -> float:
    return float(Views(subject, texts.texts, labels=texts.labels).whole().correct.mean())
