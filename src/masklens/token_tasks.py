"""Tasks with an output for each token: extractive question answering and token classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .encoding import Batch
from .errors import TargetError, TextError
from .tasks import Task, categorical_kl, class_id, per_text

LONGEST_ANSWER = 30
"""in tokens"""


class QuestionAnswering(Task):
    """The answer's first and last token in the second text of a pair (question, context).

    output: (examples, 2, tokens) logits of start and end, -inf at padding. A target is (start, end); the
    user gives token numbers or the answer's text. Divergence: KL of the starts plus KL of the ends.

    The answer is always looked for in the context. A model that says "no answer" by pointing at its first
    token (SQuAD 2.0) is asked for its best answer all the same; to explain the other, give target=(0, 0).
    """

    parts = ("question", "passage")
    cut = "only_second"

    def prepare(self, batch: Batch, wanted: Any = None) -> Batch:
        inside = in_context(batch).any(1).tolist()
        for i, text in enumerate(batch.texts):
            if isinstance(text, str):
                raise TextError(
                    f"question answering takes pairs (question, context); text {i} is {text!r:.80}. On the "
                    f"command line: --pair, or two columns of a file (--column question --column context)"
                )
            if not inside[i]:
                raise TextError(f"the context of {text!r:.80} has no tokens; give one with at least one")
        return batch

    def read(self, raw: Any, batch: Batch) -> Tensor:
        logits = torch.stack([raw.start_logits, raw.end_logits], 1)  # (examples, 2, tokens)
        return logits.masked_fill(~batch.valid[:, None], -torch.inf)

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        """The best span inside the context, of at most LONGEST_ANSWER tokens."""
        start, end = output.masked_fill(~in_context(batch)[:, None], -torch.inf).unbind(
            1
        )  # (examples, tokens)
        tokens = start.shape[1]
        best = torch.full(start.shape[:1], -torch.inf, device=output.device, dtype=output.dtype)
        span = torch.zeros(len(batch), 2, dtype=torch.long, device=output.device)
        for more in range(min(LONGEST_ANSWER, tokens)):
            value, first = (start[:, : tokens - more] + end[:, more:]).max(1)
            found = torch.stack([first, first + more], 1)
            span = torch.where((value > best)[:, None], found, span)
            best = torch.maximum(best, value)
        return span

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        target = self.predict(output, batch)
        for i, one in enumerate(per_text(wanted, len(batch))):
            if one is not None:
                target[i] = torch.tensor(self._span(one, output[i], batch, i))
        return target

    def _span(self, wanted: Any, logits: Tensor, batch: Batch, i: int) -> tuple[int, int]:
        """Token numbers from token numbers, or from the answer's text where it occurs with the best score."""
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            wanted = str(wanted)  # such as a year
        if isinstance(wanted, str):
            found = occurrences(batch, i, wanted, segment=1)
            if not found:
                known = batch.truncated[i] and wanted in batch.texts[i][1]
                where = "part of the context that the model read, which was cut:" if known else "context"
                raise TargetError(f"the answer {wanted!r} is not in the {where} {batch.texts[i][1]!r:.80}")
            return max(found, key=lambda span: float(logits[0, span[0]] + logits[1, span[1]]))
        count = len(batch.tokens[i])
        if (
            isinstance(wanted, str | int | float)
            or len(wanted) != 2
            or not 0 <= wanted[0] <= wanted[1] < count
        ):
            raise TargetError(
                f"{wanted!r} is no answer; give its text, or (start, end) token numbers with "
                f"0 <= start <= end < {count}"
            )
        return int(wanted[0]), int(wanted[1])

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return output.gather(2, target[:, :, None]).sum((1, 2))

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output).sum(1)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [span_text(batch, i, start, end) for i, (start, end) in enumerate(target.tolist())]

    def gold(self, labels: Sequence[Any], output: Tensor, batch: Batch) -> list[Any]:
        """The right answers of each question: texts, which need not be in what the model has read."""
        from .evaluation.answers import gold_answers

        return [gold_answers(label) for label in per_text(list(labels), len(batch))]

    def right(self, output: Tensor, batch: Batch, gold: Sequence[Any]) -> Tensor:
        """Exact match, as SQuAD counts it, with any of the gold answers."""
        from .evaluation.answers import exact_match

        said = self.describe(self.predict(output, batch), batch)
        matches = [exact_match(answer, right) == 1 for answer, right in zip(said, gold, strict=True)]
        return torch.tensor(matches, device=output.device)


def inside(spans: Tensor, tokens: int) -> Tensor:
    """Which tokens lie in the spans (examples, 2) of first and last tokens: (examples, tokens) bool."""
    place = torch.arange(tokens, device=spans.device)
    return (place >= spans[:, :1]) & (place <= spans[:, 1:])


class TokenClassification(Task):
    """A label for each token: output (examples, tokens, labels) logits, 0 where no label is read.

    A target holds the label of each explained token and -1 elsewhere: (examples, tokens). The user gives a
    token number or a piece of the text, alone (its predicted labels) or with a label: ("Paris", "B-LOC").
    The default is the first entity. Divergence: the sum over tokens, the KL of the joint distribution.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)

    def read(self, raw: Any, batch: Batch) -> Tensor:
        return raw.logits.masked_fill(~labelled(batch)[:, :, None], 0.0)

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
        """The first predicted entity; where nothing is "outside", the most certain token."""
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
        """A label over the tokens of an entity: B-X on the first, I-X on the others where it exists."""
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
        """ "Paris B-LOC, ..."; the many tokens that are outside of everything are left out."""
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


def labelled(batch: Batch) -> Tensor:
    """(examples, tokens): tokens that stand for text."""
    return batch.valid & ~batch.special


def in_context(batch: Batch) -> Tensor:
    """(examples, tokens): tokens of the second text."""
    return labelled(batch) & (batch.segments == 1)


def occurrences(batch: Batch, i: int, piece: str, segment: int) -> list[tuple[int, int]]:
    """First and last token of each place where a piece of text occurs in one text of the pair."""
    text = batch.texts[i]
    source = text[segment] if isinstance(text, tuple) else text if segment == 0 else ""
    usable = (labelled(batch)[i] & (batch.segments[i] == segment)).tolist()
    spans, at = [], source.find(piece) if piece else -1
    while at >= 0:
        end = at + len(piece)
        inside = [t for t, (a, b) in enumerate(batch.offsets[i]) if usable[t] and a < end and b > at]
        if inside:
            spans.append((inside[0], inside[-1]))
        at = source.find(piece, at + 1)
    return spans


def span_text(batch: Batch, i: int, start: int, end: int) -> str:
    """The text between two tokens, or their names where they stand for none."""
    text = batch.texts[i]
    source = text[int(batch.segments[i, start])] if isinstance(text, tuple) else text
    piece = source[batch.offsets[i][start][0] : batch.offsets[i][end][1]].strip()
    return piece or " ".join(batch.tokens[i][start : end + 1])
