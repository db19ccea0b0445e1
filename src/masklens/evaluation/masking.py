"""Run a model on texts with only some tokens visible. All measures of faithfulness use this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attribution import Text
from ..model.batch import Batch
from ..model.known import Known, recall
from ..model.masking import How, Masked
from ..model.subject import Subject

PHRASE = "this was written on a tuesday ."
"""a phrase that is irrelevant to any decision"""
REMEMBERED = 1_000_000
"""how many views are cached at most; methods that keep the same tokens of a text share a view"""


@dataclass(frozen=True, eq=False)
class Readings:
    """What is read from the model's output for each view; each array is (views,)."""

    log_probability: np.ndarray
    """the log-probability of the target"""
    agrees: np.ndarray
    """1 where the decision is the same as for the whole text"""
    correct: np.ndarray
    """1 where the decision is the gold label; the same as `agrees` if no labels were given"""
    divergence: np.ndarray
    """the divergence from the output for the whole text, in nats"""
    confidence: np.ndarray
    """the value that reports show: the probability of the target, or for regression the predicted number"""

    @property
    def probability(self) -> np.ndarray:
        return np.exp(self.log_probability)

    def reshape(self, *shape: int) -> Readings:
        return Readings(*(getattr(self, field.name).reshape(shape) for field in fields(self)))


class Views:
    """Texts, ready to be run with some of their tokens hidden. A *view* is a text with a set of kept tokens.

        views = Views(subject, texts, labels=labels)
        readings = views.read(rows, keep)            # rows (views,), keep (views, tokens) bool

    Special tokens, and tokens that are the mask token already, stay visible whatever `keep` says; with a
    Baseline every token can be removed. A view that was read before is not run again.

    Args:
        how, pack, tokens_at_once: see `model.masking.Masked`.
        known: the encoded texts and the model's output for them, if they were run before; by default what
            the subject remembers.
        like: views of other texts of the same subject; the checks made for them are not repeated.
    """

    def __init__(
        self,
        subject: Subject,
        texts: Sequence[Text],
        labels: Sequence[Any] | None = None,
        targets: Sequence[Any] | None = None,
        how: How = "mask",
        pack: bool = True,
        tokens_at_once: int | None = None,
        known: Known | None = None,
        like: Views | None = None,
    ) -> None:
        self.subject, self.how = subject, how
        known = known or recall(subject, texts, targets)
        self.batch = subject.encode(texts, targets) if known is None else known.batch
        checked: Masked | None = None if like is None else like.masked
        self.masked: Masked = Masked(subject, self.batch, how, pack, tokens_at_once, checked)
        self.removable = self.masked.removable.cpu().numpy()  # (texts, tokens)
        self.valid = self.batch.valid.cpu().numpy()
        self.reference = (self._whole() if known is None else known.output).cpu()  # (texts, ...)
        task, whole = subject.task, self.reference.to(subject.device)
        self.target = task.resolve(None if targets is None else list(targets), whole, self.batch)
        self.gold = None if labels is None else task.gold(labels, whole, self.batch)
        answers = self._answers(torch.arange(len(self)), self.batch, whole).tolist()
        self._seen = dict(zip(self._keys(range(len(self)), self.valid), answers, strict=True))

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def known(self) -> Known:
        """The encoded texts and the model's output for them, for other views of the same texts."""
        return Known(self.batch, self.reference)

    @property
    def counts(self) -> np.ndarray:
        """How many tokens can be removed from each text."""
        return self.removable.sum(1)

    def read(self, rows: np.ndarray, keep: np.ndarray) -> Readings:
        """The readings of the views. Equal views are run once."""
        rows = np.asarray(rows)
        keep = self._tokens(rows, np.asarray(keep, dtype=bool))
        keys = self._keys(rows, keep)
        new = {key: i for i, key in enumerate(keys) if key not in self._seen}
        found: dict[tuple[int, bytes], list[float]] = {}
        if new:
            views = list(new.values())
            some = torch.from_numpy(rows[views]), torch.from_numpy(keep[views])
            found = dict(zip(new, self.masked.read(*some, self._answers).tolist(), strict=True))
        columns = np.array([found.get(key) or self._seen[key] for key in keys]).reshape(
            -1, len(fields(Readings))
        )
        if len(self._seen) < REMEMBERED:
            self._seen |= found
        return Readings(*columns.T)

    def _tokens(self, rows: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """(views, tokens): the tokens that are visible."""
        return (keep | ~self.removable[rows]) & self.valid[rows]

    def read_steps(self, keep: np.ndarray) -> Readings:
        """Several views of every text: keep (texts, steps, tokens); the readings are (texts, steps)."""
        texts, steps, tokens = keep.shape
        rows = np.repeat(np.arange(texts), steps)
        return self.read(rows, keep.reshape(-1, tokens)).reshape(texts, steps)

    def whole(self) -> Readings:
        """The readings of the whole texts, (texts,)."""
        return self.read(np.arange(len(self)), self.valid)

    def _whole(self) -> Tensor:
        """The output for every whole text."""
        rows = torch.arange(len(self))
        return self.masked.read(rows, self.batch.valid, lambda rows, batch, output: output.cpu())

    @staticmethod
    def _keys(rows: Sequence[int] | np.ndarray, keep: np.ndarray) -> list[tuple[int, bytes]]:
        bits = np.packbits(keep, axis=1)
        return [(int(row), some.tobytes()) for row, some in zip(rows, bits, strict=True)]

    def _answers(self, rows: Tensor, batch: Batch, output: Tensor) -> Tensor:
        """(views, 5): the columns of `Readings`."""
        task, reference = self.subject.task, self.reference[rows.cpu()].to(output.device)
        agrees = correct = task.agrees(reference, output, batch)
        if self.gold is not None:
            correct = task.right(output, batch, [self.gold[i] for i in rows.tolist()])
        target = self.target[rows.to(self.target.device)]
        moved, shown = task.divergence(reference, output), task.confidence(output, target)
        columns = [task.log_probability(output, target), agrees, correct, moved, shown]
        return torch.stack([column.double() for column in columns], 1)


def irrelevant_removal(
    subject: Subject, texts: Sequence[str], how: How = "mask", phrase: str = PHRASE
) -> np.ndarray:
    """How far the removal of irrelevant tokens moves the output: (texts,), in nats.

    An irrelevant phrase is put before each text and removed again. The output should then be that of the text
    alone. 0 is best; a larger value is caused by the way in which tokens are removed. With "drop" the value
    is always 0, because dropping the phrase gives back the text.
    """
    reference = Views(subject, texts).reference
    longer = Masked(subject, subject.encode([f"{phrase} {text}" for text in texts]), how)
    if not len(texts):
        return np.zeros(0)
    return (
        longer.read(
            torch.arange(len(texts)),
            longer.batch.valid & ~_before(longer.batch, len(phrase)),
            lambda rows, _, output: subject.task.divergence(reference[rows.cpu()].to(output.device), output),
        )
        .cpu()
        .numpy()
    )


def _before(batch: Batch, end: int) -> Tensor:
    """(texts, tokens) bool: the tokens within the first `end` characters, without special tokens."""
    early = torch.zeros_like(batch.valid)
    for i, offsets in enumerate(batch.offsets):
        early[i, batch.valid[i]] = early.new_tensor([0 < stop <= end for _, stop in offsets])
    return early & ~batch.special
