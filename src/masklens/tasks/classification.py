"""Tasks with one output for each text: classes, labels and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import TargetError, did_you_mean
from ..model.batch import Batch
from .base import Task, per_text


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
        predicted, targets = self.predict(output, batch), per_text(wanted, len(batch))
        if all(one is None for one in targets):
            return predicted
        chosen = [
            best if one is None else class_id(one, self.labels)
            for best, one in zip(predicted.tolist(), targets, strict=True)
        ]
        return torch.tensor(chosen, device=output.device)

    def check_labels(self, labels: Sequence[Any], count: int) -> None:
        super().check_labels(labels, count)
        for label in set(labels):
            class_id(label, self.labels)

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return output.gather(-1, target[:, None])[:, 0]

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output)

    def average(self, outputs: Tensor) -> Tensor | None:
        return categorical_average(outputs)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [self.labels[i] for i in target.tolist()]

    def probabilities(self, output: Tensor) -> list[dict[str, float]]:
        return self._by_name(F.softmax(output.float(), -1))

    def _by_name(self, shares: Tensor) -> list[dict[str, float]]:
        """For each row of `shares` (examples, classes), the values by the name of the class."""
        return [dict(zip(self.labels, row, strict=True)) for row in shares.tolist()]


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

    def probabilities(self, output: Tensor) -> list[dict[str, float]]:
        return self._by_name(torch.stack([-output, output], -1).float().sigmoid())

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return bernoulli_kl(reference, output)

    def average(self, outputs: Tensor) -> Tensor | None:
        return bernoulli_average(outputs)


class MultiLabel(Classification):
    """Any number of labels at once: output (examples, labels) logits, one Bernoulli each.

    A target is 1 for each label that is explained and 0 for the others: (examples, labels). The user names
    one label or a tuple of labels. The default is the most probable label.
    """

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return (output > 0).long()

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        target = torch.zeros_like(output, dtype=torch.long)
        best = output.argmax(-1).tolist()
        for i, one in enumerate(per_text(wanted, len(batch))):
            names = one if isinstance(one, tuple) else (best[i] if one is None else one,)
            target[i, [class_id(name, self.labels) for name in names]] = 1
        return target

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * target).sum(-1)

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        """The log-probability that all labels of the target are present, as independent events; if the target
        has no label, that none is present."""
        logits = output.float()
        all_present = self.score(F.logsigmoid(logits), target)
        return torch.where(target.bool().any(-1), all_present, F.logsigmoid(-logits).sum(-1))

    def probabilities(self, output: Tensor) -> list[dict[str, float]]:
        return self._by_name(output.float().sigmoid())

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return bernoulli_kl(reference, output).sum(-1)

    def average(self, outputs: Tensor) -> Tensor | None:
        return bernoulli_average(outputs)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        chosen = [[name for name, on in zip(self.labels, row, strict=True) if on] for row in target.tolist()]
        return [", ".join(names) or "none" for names in chosen]


class Regression(Classification):
    """Numbers: output (examples, numbers); divergence: half the squared difference (KL of unit normals).

    A target is the index of a number and its value in the unedited output: (examples, 2).
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
        """Minus half the squared change: the log-density of a unit normal, relative to its peak."""
        return -(self.score(output, target) - target[:, 1]).float().square() / 2

    def confidence(self, output: Tensor, target: Tensor) -> Tensor:
        return self.score(output, target)

    def probabilities(self, output: Tensor) -> list[dict[str, float]]:
        return [{} for _ in output]

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
    shown = ", ".join(f"{i} {name!r}" for i, name in enumerate(names[:20])) + " ..." * (len(names) > 20)
    raise TargetError(f"no class {target!r}; the model has {shown}{did_you_mean(target, names)}")


def categorical_kl(reference: Tensor, output: Tensor) -> Tensor:
    """KL(softmax(reference) || softmax(output)) over the last dimension, in float32.

    A class that is -inf in both is left out.
    """
    log_p = F.log_softmax(reference.float(), -1)
    log_q = F.log_softmax(output.float(), -1)
    gap = torch.where(log_p.isneginf(), 0.0, log_p - log_q)
    return (log_p.exp() * gap).sum(-1).clamp(min=0)


def categorical_average(outputs: Tensor) -> Tensor:
    """The logits of the mean distribution: (1, ...)."""
    return F.softmax(outputs.float(), -1).mean(0, keepdim=True).log()


def bernoulli_average(outputs: Tensor) -> Tensor:
    """The logits of the mean probability of yes: (1, ...). They are finite even if all are certain."""
    return torch.sigmoid(outputs.float()).mean(0, keepdim=True).logit(eps=1e-6)


def bernoulli_kl(reference: Tensor, output: Tensor) -> Tensor:
    """KL between the Bernoulli distributions of two tensors of logits, elementwise, in float32."""
    p, q = reference.float(), output.float()
    yes = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
    no = (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))
    return (yes + no).clamp(min=0)
