"""What a model's output means: the prediction, the score of a target, the change of an output.

A task turns a model's raw output into one tensor, examples first, called `output` everywhere else. It
knows nothing about layers or methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .encoding import Batch
from .errors import TargetError


class Task(ABC):
    """Reads the output of a model."""

    @abstractmethod
    def read(self, raw: Any, batch: Batch) -> Tensor:
        """The raw output as one tensor, examples first."""

    @abstractmethod
    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        """The model's own decision, as target ids: (examples,) or (examples, parts)."""

    @abstractmethod
    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        """Target ids from what the user gave: None for the prediction, one target, or one a text."""

    @abstractmethod
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The value to explain, before any softmax: (examples,)."""

    @abstractmethod
    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        """How far the output moved from the reference, in nats, at least 0: (examples,)."""

    @abstractmethod
    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        """A name for each target, as shown to people."""


def per_text(wanted: Any, count: int) -> list[Any]:
    """One target for each of `count` texts from one target for all, or a list of them."""
    if isinstance(wanted, list | Tensor):
        if len(wanted) != count:
            raise TargetError(f"{len(wanted)} targets for {count} texts; give one, or one a text")
        return list(wanted)
    return [wanted] * count


class Classification(Task):
    """One of several classes: output (examples, classes) logits; divergence KL(reference || output)."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)

    def read(self, raw: Any, batch: Batch) -> Tensor:
        return raw if isinstance(raw, Tensor) else raw.logits

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return output.argmax(-1)

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        predicted = self.predict(output, batch)
        chosen = [
            int(predicted[i]) if one is None else class_id(one, self.labels)
            for i, one in enumerate(per_text(wanted, len(batch)))
        ]
        return torch.tensor(chosen, device=output.device)

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return output.gather(-1, target[:, None])[:, 0]

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [self.labels[int(i)] for i in target]


class BinaryClassification(Classification):
    """Yes or no from a single logit: output (examples,); class 1 is yes."""

    def __init__(self, labels: Sequence[str] = ("no", "yes")) -> None:
        super().__init__(labels)

    def read(self, raw: Any, batch: Batch) -> Tensor:
        return super().read(raw, batch).reshape(len(batch))

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return (output > 0).long()

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.where(target == 1, output, -output)

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return bernoulli_kl(reference, output)


def class_id(target: Any, labels: Sequence[str] | Mapping[int, str]) -> int:
    """A class id from an id or a label name."""
    names = list(labels.values()) if isinstance(labels, Mapping) else list(labels)
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, str):
        folded = [name.casefold() for name in names]
        if folded.count(target.casefold()) == 1:
            return folded.index(target.casefold())
    elif not isinstance(target, bool) and 0 <= int(target) < len(names):
        return int(target)
    shown = ", ".join(f"{i} {name!r}" for i, name in enumerate(names[:20]))
    raise TargetError(f"no class {target!r}; the model has {shown}" + (" ..." if len(names) > 20 else ""))


def categorical_kl(reference: Tensor, output: Tensor) -> Tensor:
    """KL(softmax(reference) || softmax(output)) over the last dimension, in float32.

    A class at -inf in both is left out.
    """
    log_p = F.log_softmax(reference.float(), -1)
    log_q = F.log_softmax(output.float(), -1)
    gap = torch.where(log_p.isneginf(), 0.0, log_p - log_q)
    return (log_p.exp() * gap).sum(-1).clamp(min=0)


def bernoulli_kl(reference: Tensor, output: Tensor) -> Tensor:
    """KL between the Bernoullis that two tensors of logits stand for, elementwise, in float32."""
    p, q = reference.float(), output.float()
    yes = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
    no = (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))
    return (yes + no).clamp(min=0)
