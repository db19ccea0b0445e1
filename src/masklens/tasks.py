"""What a model's output means: the prediction, the score of a target, the change of an output.

A task turns a model's raw output into one tensor, examples first, called `output` everywhere else. It
knows nothing about layers or methods. Tasks over tokens are in `token_tasks`, language models in `lm_tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attribution import Text
from .encoding import Batch
from .errors import TargetError


class Task(ABC):
    """Reads the output of a model."""

    fixed_shape = False
    """whether an example's output has the same shape whatever the length of its text and of the batch"""
    parts: tuple[str, str] = ("first text", "second text")
    """what the two texts of a pair are called"""
    cut = "longest_first"
    """which text of a pair is cut where both are too long for the model, as tokenizers call it"""

    def source(self, text: Text) -> Text:
        """The part of a text that is tokenised."""
        return text

    def prepare(self, batch: Batch, wanted: Any = None) -> Batch:
        """The batch with what the task must add to it or note in its `marks`, such as the place to read.

        Noted before anything is edited: a method may put further mask tokens into the text.
        """
        return batch

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

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        """The log-probability that the model gives the target: (examples,)."""
        return self.score(F.log_softmax(output.float(), -1), target)

    @abstractmethod
    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        """How far the output moved from the reference, in nats, at least 0: (examples,)."""

    def average(self, outputs: Tensor) -> Tensor | None:
        """The output whose distribution is the average of these: (1, ...); None where there is none."""
        return None

    @abstractmethod
    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        """A name for each target, as shown to people."""

    def agrees(self, reference: Tensor, output: Tensor, batch: Batch) -> Tensor:
        """Whether the decision is the same in both outputs: (examples,) bool."""
        same = self.predict(reference, batch) == self.predict(output, batch)
        return same.reshape(len(batch), -1).all(1)

    def gold(self, labels: Sequence[Any], output: Tensor, batch: Batch) -> list[Any]:
        """What `right` compares decisions with, one a text, from the labels that the user gave."""
        return list(self.resolve(list(labels), output, batch))

    def right(self, output: Tensor, batch: Batch, gold: Sequence[Any]) -> Tensor:
        """Whether the decisions are the gold ones: (examples,) bool."""
        same = self.predict(output, batch) == torch.stack(list(gold))
        return same.reshape(len(batch), -1).all(1)


def per_text(wanted: Any, count: int) -> list[Any]:
    """One target for each of `count` texts from one target for all, or a list of them."""
    if isinstance(wanted, list | Tensor):
        if len(wanted) != count:
            raise TargetError(f"{len(wanted)} targets for {count} texts; give one, or one a text")
        return list(wanted)
    return [wanted] * count


class Classification(Task):
    """One of several classes: output (examples, classes) logits; divergence KL(reference || output)."""

    fixed_shape = True

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

    def average(self, outputs: Tensor) -> Tensor | None:
        return F.softmax(outputs.float(), -1).mean(0, keepdim=True).log()

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

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        return F.logsigmoid(self.score(output.float(), target))

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return bernoulli_kl(reference, output)

    def average(self, outputs: Tensor) -> Tensor | None:
        return bernoulli_average(outputs)


class MultiLabel(Classification):
    """Any number of labels at once: output (examples, labels) logits, one Bernoulli each.

    A target says for each label whether it is meant: (examples, labels) of 0 and 1. The user names one
    label or a tuple of them; the default is the most probable one.
    """

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return (output > 0).long()

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        target = torch.zeros_like(output, dtype=torch.long)
        best = output.argmax(-1)
        for i, one in enumerate(per_text(wanted, len(batch))):
            names = one if isinstance(one, tuple) else (best[i] if one is None else one,)
            target[i, [class_id(name, self.labels) for name in names]] = 1
        return target

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * target).sum(-1)

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        """That all labels meant are there, each on its own."""
        return self.score(F.logsigmoid(output.float()), target)

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return bernoulli_kl(reference, output).sum(-1)

    def average(self, outputs: Tensor) -> Tensor | None:
        return bernoulli_average(outputs)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [", ".join(self.labels[int(k)] for k in row.nonzero()[:, 0]) or "none" for row in target]


class Regression(Classification):
    """Numbers: output (examples, numbers); divergence that of unit normals, half the squared difference.

    A target is which number is meant and its value in the unedited output: (examples, 2).
    """

    def __init__(self, labels: Sequence[str], tolerance: float = 0.5) -> None:
        super().__init__(labels)
        self.tolerance = tolerance
        """how far a number may move before it counts as another decision"""

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return torch.stack([torch.zeros_like(output[:, 0]), output[:, 0]], -1)

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        chosen = [0 if one is None else class_id(one, self.labels) for one in per_text(wanted, len(batch))]
        which = torch.tensor(chosen, device=output.device)
        return torch.stack([which.to(output.dtype), super().score(output, which)], -1)

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return super().score(output, target[:, 0].long())

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        """Of a normal around the unedited value, relative to its peak: minus half the squared change."""
        return -(self.score(output, target) - target[:, 1]).float().square() / 2

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return (reference - output).float().square().sum(-1) / 2

    def average(self, outputs: Tensor) -> Tensor | None:
        return outputs.float().mean(0, keepdim=True)

    def agrees(self, reference: Tensor, output: Tensor, batch: Batch) -> Tensor:
        return ((reference - output).abs() <= self.tolerance).all(-1)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        named = len(self.labels) > 1
        return [f"{self.labels[int(i)]} " * named + f"{value:.4g}" for i, value in target.tolist()]


def class_id(target: Any, labels: Sequence[str] | Mapping[int, str]) -> int:
    """A class id from an id or a label name."""
    names = list(labels.values()) if isinstance(labels, Mapping) else list(labels)
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, str):
        folded = [name.casefold() for name in names]
        if folded.count(target.casefold()) == 1:
            return folded.index(target.casefold())
    elif not isinstance(target, bool) and target in range(len(names)):
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


def bernoulli_average(outputs: Tensor) -> Tensor:
    """The logits of the mean probability of yes: (1, ...); finite also where all are certain."""
    return torch.sigmoid(outputs.float()).mean(0, keepdim=True).logit(eps=1e-6)


def bernoulli_kl(reference: Tensor, output: Tensor) -> Tensor:
    """KL between the Bernoullis that two tensors of logits stand for, elementwise, in float32."""
    p, q = reference.float(), output.float()
    yes = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
    no = (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))
    return (yes + no).clamp(min=0)
