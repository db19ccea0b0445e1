"""Token classification: a label for every word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import TargetError
from ..model.batch import Batch
from .base import Task, per_text
from .classification import categorical_kl, class_id
from .positions import labelled, occurrences, span_text


class TokenClassification(Task):
    """A label for each token: output (examples, tokens, labels) logits, 0 where no label is read.

    A target holds the label of each explained token and -1 elsewhere: (examples, tokens). The user gives a
    token number or a piece of the text, alone (its predicted labels) or with a label: ("Paris", "B-LOC").
    The default is the first entity. The divergence is the sum of the KL over tokens, which is the KL of the
    joint distribution.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)

    def read(self, raw: Any, batch: Batch) -> Tensor:
        return raw.logits.masked_fill(~labelled(batch)[:, :, None], 0.0)

    def widened(self, output: Tensor, tokens: int) -> Tensor:
        return F.pad(output, (0, 0, 0, tokens - output.shape[1]))

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        return output.argmax(-1).masked_fill(~labelled(batch), -1)

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        predicted = self.predict(output, batch)
        target = torch.full_like(predicted, -1)
        for i, one in enumerate(per_text(wanted, len(batch))):
            place, label = one if isinstance(one, tuple) else (one, None)
            where = self._default(output[i], predicted[i]) if place is None else _places(place, batch, i)
            target[i, where] = predicted[i, where] if label is None else self._spread(label, where).to(target)
        return target

    def _default(self, output: Tensor, predicted: Tensor) -> list[int]:
        """The first predicted entity; if there is none, or no label "O", the most certain token."""
        names = [self.labels[k] if k >= 0 else "O" for k in predicted.tolist()]
        starts = [t for t, name in enumerate(names) if name != "O"]
        if "O" not in self.labels or not starts:
            sure = F.softmax(output.float(), -1).amax(-1).masked_fill(predicted < 0, -1)
            return [int(sure.argmax())]
        end = starts[0] + 1
        while end < len(names) and names[end] in (f"I-{names[starts[0]][2:]}", _inner(names[starts[0]])):
            end += 1
        return list(range(starts[0], end))

    def _spread(self, label: Any, where: Sequence[int]) -> Tensor:
        """Give a label to the tokens of an entity: B-X to the first, I-X to the others if it exists."""
        first = class_id(label, self.labels)
        inner = _inner(self.labels[first])
        rest = self.labels.index(inner) if inner in self.labels else first
        return torch.tensor([first, *[rest] * (len(where) - 1)])

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        chosen = output.gather(2, target.clamp(min=0)[:, :, None])[:, :, 0]  # (examples, tokens)
        return chosen.masked_fill(target < 0, 0.0).sum(1)

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output).sum(1)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [self._name(row, batch, i) for i, row in enumerate(target.tolist())]

    def _name(self, row: Sequence[int], batch: Batch, i: int) -> str:
        """ "Paris B-LOC, ..."; tokens outside every entity are left out."""
        chosen = [(t, self.labels[k]) for t, k in enumerate(row) if k >= 0]
        shown = [(t, name) for t, name in chosen if name != "O"]
        if not shown and len(chosen) != 1:
            return "O"
        return ", ".join(f"{span_text(batch, i, t, t)} {name}" for t, name in shown or chosen)


def _inner(label: str) -> str:
    return f"I-{label[2:]}" if label.startswith("B-") else label


def _places(place: Any, batch: Batch, i: int) -> list[int]:
    """Token numbers from a token number or a piece of the text."""
    if isinstance(place, str):
        spans = occurrences(batch, i, place, segment=0) or occurrences(batch, i, place, segment=1)
        if spans:
            return list(range(spans[0][0], spans[0][1] + 1))
    elif not isinstance(place, bool) and 0 <= int(place) < len(batch.tokens[i]):
        return [int(place)]
    raise TargetError(
        f"no token {place!r} in {batch.texts[i]!r:.80}; give a piece of the text, or a token number below "
        f"{len(batch.tokens[i])}"
    )
