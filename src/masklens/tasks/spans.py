"""Question answering: the answer is a span of the context."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import TargetError, TextError
from ..model.batch import Batch
from .answers import exact_match, gold_answers
from .base import Task, per_text
from .classification import categorical_kl
from .positions import in_context, occurrences, span_text

LONGEST_ANSWER = 30
"""in tokens"""


class QuestionAnswering(Task):
    """The answer's first and last token in the second text of a pair (question, context).

    output: (examples, 2, tokens) logits of start and end, -inf at padding. A target is (start, end); the
    user gives token numbers or the answer's text. Divergence: KL of the starts plus KL of the ends.

    The answer is always a span of the context. A SQuAD 2.0 model says "no answer" with its first token; it is
    asked for its best span all the same. To explain "no answer", give target=(0, 0).
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

    def widened(self, output: Tensor, tokens: int) -> Tensor:
        return F.pad(output, (0, tokens - output.shape[-1]), value=-torch.inf)

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
        """The (start, end) tokens of a target that is given as token numbers or as text. Of several
        occurrences of the text, the one with the best score counts."""
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            wanted = str(wanted)  # such as a year
        if isinstance(wanted, str):
            found = occurrences(batch, i, wanted, segment=1)
            if not found:
                known = batch.truncated[i] and wanted in batch.texts[i][1]
                where = "part of the context that the model read, which was cut:" if known else "context"
                raise TargetError(f"the answer {wanted!r} is not in the {where} {batch.texts[i][1]!r:.80}")
            return max(found, key=lambda span: float(logits[0, span[0]] + logits[1, span[1]]))
        count, ends = len(batch.tokens[i]), wanted if isinstance(wanted, Sequence) else ()
        whole = all(isinstance(end, Integral) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not whole or not 0 <= ends[0] <= ends[1] < count:
            raise TargetError(
                f"{wanted!r} is not an answer; give its text, or (start, end) token numbers with "
                f"0 <= start <= end < {count}"
            )
        return int(ends[0]), int(ends[1])

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        return output.gather(2, target[:, :, None]).sum((1, 2))

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output).sum(1)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        return [span_text(batch, i, start, end) for i, (start, end) in enumerate(target.tolist())]

    def answers(self, target: Tensor, batch: Batch) -> list[tuple[int, int] | None]:
        inside = in_context(batch)
        return [
            (batch.offsets[i][start][0], batch.offsets[i][end][1]) if inside[i, start] else None
            for i, (start, end) in enumerate(target.tolist())
        ]

    def gold(self, labels: Sequence[Any], output: Tensor, batch: Batch) -> list[Any]:
        """The right answers to each question. They need not occur in the text that the model has read."""
        return [gold_answers(label) for label in per_text(list(labels), len(batch))]

    def right(self, output: Tensor, batch: Batch, gold: Sequence[Any]) -> Tensor:
        """Exact match, as SQuAD counts it, with any of the gold answers."""
        said = self.describe(self.predict(output, batch), batch)
        matches = [exact_match(answer, right) == 1 for answer, right in zip(said, gold, strict=True)]
        return torch.tensor(matches, device=output.device)
