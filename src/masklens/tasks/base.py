"""What a model's output means: the prediction, the score of a target, the change of an output.

A task turns a model's raw output into one tensor, examples first. The rest of the package calls this tensor
`output`. A task knows nothing about layers or methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attribution import Text
from ..errors import TargetError
from ..model.batch import Batch


class Task(ABC):
    """Reads the output of a model."""

    fixed_shape = False
    """whether the output of an example has the same shape for texts of any length"""
    parts: tuple[str, str] = ("first text", "second text")
    """the names of the two texts of a pair"""
    cut = "longest_first"
    """which text is cut if a pair is too long for the model: a truncation strategy of tokenizers"""

    def removable(self, batch: Batch) -> Tensor:
        """(examples, tokens) bool: the tokens whose states a baseline may replace."""
        return batch.valid

    def reader(self, batch: Batch) -> Tensor | None:
        """In a causal model the position at which each output is first read, (examples,). Only the state
        there depends on the whole text. None for other models."""
        return None

    def source(self, text: Text) -> Text:
        """The part of a text that is tokenised."""
        return text

    def prepare(self, batch: Batch, wanted: Any = None) -> Batch:
        """Add what the task needs to the batch or to its `marks`, such as the positions to read.

        It must be called before any edit, because a method may put further mask tokens into the text.
        """
        return batch

    @abstractmethod
    def read(self, raw: Any, batch: Batch) -> Tensor:
        """Turn the raw output into one tensor, examples first."""

    def widened(self, output: Tensor, tokens: int) -> Tensor:
        """The output as it would be for a batch that is padded to `tokens` tokens."""
        return output

    @abstractmethod
    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        """The model's own decision, as target ids: (examples,) or (examples, parts)."""

    @abstractmethod
    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        """Target ids from the user's targets: None for the prediction, one for all texts, or one for each."""

    @abstractmethod
    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The value to explain: for classes the logit, for tokens of a vocabulary the log-probability:
        (examples,)."""

    def log_probability(self, output: Tensor, target: Tensor) -> Tensor:
        """The log-probability that the model gives the target: (examples,)."""
        return self.score(F.log_softmax(output.float(), -1), target)

    def confidence(self, output: Tensor, target: Tensor) -> Tensor:
        """(examples,): the value that reports show for a target: its probability, or a predicted number."""
        return self.log_probability(output, target).exp()

    @abstractmethod
    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        """How far the output moved from the reference, in nats, at least 0: (examples,)."""

    def average(self, outputs: Tensor) -> Tensor | None:
        """(1, ...): the output whose distribution is the average of those of `outputs`. None if the task has
        no such average."""
        return None

    @abstractmethod
    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        """A name for each target, as shown to people."""

    def probabilities(self, output: Tensor) -> list[dict[str, float]]:
        """For each text the probability of every class by its name; empty if the task has no classes."""
        return [{} for _ in output]

    def answers(self, target: Tensor, batch: Batch) -> list[tuple[int, int] | None]:
        """For each text, if the decision is an answer span: its characters in the second part. Else None."""
        return [None for _ in target]

    def agrees(self, reference: Tensor, output: Tensor, batch: Batch) -> Tensor:
        """Whether the decision is the same in both outputs: (examples,) bool."""
        same = self.predict(reference, batch) == self.predict(output, batch)
        return same.reshape(len(batch), -1).all(1)

    def check_labels(self, labels: Sequence[Any], count: int) -> None:
        """Raise a TargetError unless there is a label for each of `count` texts; called before any is run."""
        if len(labels) != count:
            raise TargetError(f"{len(labels)} gold labels for {count} texts; give one a text")

    def gold(self, labels: Sequence[Any], output: Tensor, batch: Batch) -> list[Any]:
        """The gold targets that `right` compares decisions with, one per text, from the user's labels."""
        return list(self.resolve(list(labels), output, batch))

    def right(self, output: Tensor, batch: Batch, gold: Sequence[Any]) -> Tensor:
        """Whether the decisions are the gold ones: (examples,) bool."""
        same = self.predict(output, batch) == torch.stack(list(gold))
        return same.reshape(len(batch), -1).all(1)


def per_text(wanted: Any, count: int) -> list[Any]:
    """One target for each of `count` texts, from one target for all or from a list."""
    if isinstance(wanted, list | Tensor):
        if len(wanted) != count:
            raise TargetError(f"{len(wanted)} targets for {count} texts; give one, or one per text")
        return list(wanted)
    return [wanted] * count
