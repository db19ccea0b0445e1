"""Run a model on texts of which only some tokens are visible.

Hidden tokens become the mask token and leave attention. A token out of attention has no effect on the
others, so where the model can be told the places of the tokens, only the visible ones are run: packed to
the left, with their own positions. That this is the same is tried on the first texts of every set; models
for which it is not, and tasks with an output for each token, get the whole text with tokens masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..attribution import Text
from ..diffmask.networks import baseline_at
from ..encoding import Batch
from ..errors import MethodError, ModelError
from ..families import at_places, takes_positions
from ..subject import Subject

Manner = Literal["mask", "drop"]

REMEMBERED = 1_000_000
"""views whose readings are kept, so that methods share what they have in common"""


@dataclass(frozen=True, eq=False)
class Baseline:
    """Removed tokens have their state replaced by a vector; they stay in attention."""

    vector: Tensor
    """(width,), a table by place (see `baseline_at`), or what broadcasts to (examples, tokens, width)"""
    site: int = 0


@dataclass(frozen=True, eq=False)
class Readings:
    """What the model made of each view; each array is (views,)."""

    log_probability: np.ndarray
    """of the target"""
    agrees: np.ndarray
    """1 where the decision is the same as for the whole text"""
    correct: np.ndarray
    """1 where the decision is the gold label; as `agrees` where no labels were given"""
    divergence: np.ndarray
    """from the output for the whole text, in nats"""

    @property
    def probability(self) -> np.ndarray:
        return np.exp(self.log_probability)

    def reshape(self, *shape: int) -> Readings:
        return Readings(*(getattr(self, field.name).reshape(shape) for field in fields(self)))


class Known(NamedTuple):
    """Texts that went through the model already."""

    batch: Batch
    output: Tensor


class Views:
    """Texts ready to be looked at in part.

        views = Views(subject, texts, labels=labels)
        readings = views.read(rows, keep)            # rows (views,), keep (views, tokens) bool

    Special tokens, and tokens that are the mask token already, stay visible whatever `keep` says; with a
    Baseline every token can be removed. A view that was read before is not run again.

    Args:
        known: the texts as they were encoded before, and the model's output for them.
        like: views of other texts of the same subject, whose checks of what the model allows hold here too.
    """

    by_text: bool
    """whether the output has the same shape however much padding there is"""
    packed: bool
    """whether hidden tokens are left out of the model's input"""

    def __init__(
        self,
        subject: Subject,
        texts: Sequence[Text],
        labels: Sequence[Any] | None = None,
        targets: Sequence[Any] | None = None,
        how: Manner | Tensor | Baseline = "mask",
        pack: bool = True,
        tokens_at_once: int | None = None,
        known: Known | None = None,
        like: Views | None = None,
    ) -> None:
        self.subject = subject
        self.how = _manner(how)
        self.batch = subject.encode(texts, targets) if known is None else known.batch
        self.fill = _fill_token(subject) if self.how == "mask" else 0
        self.removable = self._removable()
        self.tokens_at_once = tokens_at_once or (1024 if subject.device.type == "cpu" else 32768)
        self._seen: dict[tuple[int, bytes], tuple[float, ...]] = {}
        self.by_text = self._reads_by_text() if like is None else like.by_text
        self.reference = self._whole() if known is None else known.output.cpu()  # (texts, ...)
        task, whole = subject.task, self.reference.to(subject.device)
        self.target = task.resolve(None if targets is None else list(targets), whole, self.batch)
        self.gold = None if labels is None else task.gold(labels, whole, self.batch)
        self._remember_whole()
        if self.how == "drop" and like is None:
            self._check_dropping()
        self.packed = self._can_pack(pack) if like is None else like.packed

    def __len__(self) -> int:
        return len(self.batch)

    def _can_pack(self, wanted: bool) -> bool:
        return self.how == "drop" or (self.how == "mask" and wanted and self._packing_is_exact())

    @property
    def counts(self) -> np.ndarray:
        """How many tokens can be removed from each text."""
        return self.removable.sum(1)

    def read(self, rows: np.ndarray, keep: np.ndarray) -> Readings:
        """The model's answers to the views; equal views are run once."""
        rows = np.asarray(rows)
        keep = (np.asarray(keep, dtype=bool) | ~self.removable[rows]) & self._valid()[rows]
        packed = np.packbits(keep, axis=1)
        keys = [(int(row), bits.tobytes()) for row, bits in zip(rows, packed, strict=True)]
        found = {key: self._seen[key] for key in dict.fromkeys(keys) if key in self._seen}
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        order = np.array(sorted(first.values()), dtype=int)
        for part, values in self._run(rows, keep, order):
            found |= {keys[i]: value for i, value in zip(part, values, strict=True)}
        if len(self._seen) < REMEMBERED:
            self._seen |= found
        columns = np.array([found[key] for key in keys], dtype=np.float64).reshape(len(keys), 4)
        return Readings(*columns.T)

    def read_steps(self, keep: np.ndarray) -> Readings:
        """Several views of every text: keep (texts, steps, tokens); the readings are (texts, steps)."""
        texts, steps, tokens = keep.shape
        rows = np.repeat(np.arange(texts), steps)
        return self.read(rows, keep.reshape(-1, tokens)).reshape(texts, steps)

    def whole(self) -> Readings:
        """The readings of the whole texts, (texts,)."""
        return self.read(np.arange(len(self)), self._valid())

    def _removable(self) -> np.ndarray:
        """(texts, tokens): tokens that may be removed."""
        batch = self.batch
        if isinstance(self.how, Baseline):
            return batch.valid.cpu().numpy()
        if not {"input_ids", "attention_mask"} <= batch.inputs.keys():
            raise ModelError(
                f"tokens are hidden through input_ids and attention_mask; this subject takes "
                f"{', '.join(batch.inputs)}. Give a vector that stands for a removed token (replace=tensor)"
            )
        masks = batch.inputs["input_ids"] == (getattr(self.subject.tokenizer, "mask_token_id", None) or -1)
        return (batch.valid & ~batch.special & ~masks).cpu().numpy()

    def _valid(self) -> np.ndarray:
        return self.batch.valid.cpu().numpy()

    def _run(
        self, rows: np.ndarray, keep: np.ndarray, order: np.ndarray
    ) -> Iterator[tuple[np.ndarray, list[tuple[float, ...]]]]:
        """Run the views named in `order` in batches of similar length, longest first."""
        widths = keep.sum(1) if self.packed else self._valid().sum(1)[rows]
        order = order[np.argsort(-widths[order], kind="stable")]
        start = 0
        while start < len(order):
            count = max(1, self.tokens_at_once // max(1, int(widths[order[start]])))
            part = order[start : start + count]
            yield part, self._readings(rows[part], torch.from_numpy(keep[part]))
            start += count

    @torch.no_grad()
    def _readings(self, rows: np.ndarray, keep: Tensor) -> list[tuple[float, ...]]:
        """(log-probability, agrees, correct, divergence) of each view, as one batch or in two halves."""
        try:
            batch, output = self._output(rows.tolist(), keep.to(self.batch.valid.device))
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            half = len(rows) // 2
        else:
            return self._answers(torch.from_numpy(rows), batch, output)
        return [*self._readings(rows[:half], keep[:half]), *self._readings(rows[half:], keep[half:])]

    def _answers(self, rows: Tensor, batch: Batch, output: Tensor) -> list[tuple[float, ...]]:
        task = self.subject.task
        reference = self.reference[rows].to(output.device)
        agrees = task.agrees(reference, output, batch)
        correct = agrees
        if self.gold is not None:
            correct = task.right(output, batch, [self.gold[i] for i in rows.tolist()])
        target = self.target[rows.to(self.target.device)]
        columns = [task.log_probability(output, target), agrees, correct, task.divergence(reference, output)]
        return [tuple(row) for row in torch.stack([c.double() for c in columns], 1).tolist()]

    def _output(self, rows: list[int], keep: Tensor) -> tuple[Batch, Tensor]:
        if isinstance(self.how, Baseline):
            return self._replaced(rows, keep, self.how)
        if self.packed:
            return self._visible(rows, keep)
        return self._masked(rows, keep)

    def _visible(self, rows: list[int], keep: Tensor) -> tuple[Batch, Tensor]:
        """Only the visible tokens, packed to the left; at their own places unless tokens are dropped."""
        places, valid = packing(keep)
        index = torch.tensor(rows, device=places.device)[:, None]

        def gather(value: Tensor) -> Tensor:
            return value[index, places] if value.shape[:2] == self.batch.shape else value[index[:, 0]]

        batch = replace(
            self.batch.take(rows),
            inputs={name: gather(value) for name, value in self.batch.inputs.items()},
            valid=valid,
            special=gather(self.batch.special),
            segments=gather(self.batch.segments),
        )
        batch.inputs["attention_mask"] = batch.inputs["attention_mask"] * valid
        if self.how == "drop":
            return batch, self.subject.run(batch).output
        with at_places(self.subject.module, places) as positions:
            batch.inputs.update(positions)
            return batch, self.subject.run(batch).output

    def _masked(self, rows: list[int], keep: Tensor) -> tuple[Batch, Tensor]:
        """The whole text: hidden tokens become the mask token and leave attention.

        Where nothing at all is visible, the mask tokens stay in attention: a model must attend to something.
        """
        batch = self.batch.take(rows)
        hidden = batch.valid & ~keep
        attended = batch.inputs["attention_mask"].bool() & ~hidden
        attended |= ~attended.any(1, keepdim=True) & batch.valid
        inputs = batch.inputs | {
            "input_ids": torch.where(hidden, self.fill, batch.inputs["input_ids"]),
            "attention_mask": attended.to(batch.inputs["attention_mask"].dtype),
        }
        batch = self._cut(replace(batch, inputs=inputs))
        return batch, self.subject.run(batch).output

    def _replaced(self, rows: list[int], keep: Tensor, baseline: Baseline) -> tuple[Batch, Tensor]:
        batch = self.batch.take(rows)

        def edit(state: Tensor) -> Tensor:
            return torch.where(keep[:, :, None], state, baseline_at(baseline.vector, keep.shape[1]).to(state))

        return batch, self.subject.run(batch, replace={baseline.site: edit}).output

    def _cut(self, batch: Batch) -> Batch:
        """The batch without columns that are padding in every row, where the output does not mind."""
        return cut(batch) if self.by_text else batch

    @torch.no_grad()
    def _whole(self) -> Tensor:
        """The output for every whole text, on the CPU."""
        lengths = self.batch.valid.sum(1).cpu().numpy()
        order = np.argsort(-lengths, kind="stable")
        rows = max(1, self.tokens_at_once // self.batch.shape[1])
        parts = [order[i : i + rows].tolist() for i in range(0, len(order), rows)]
        found = torch.cat([self.subject.run(self._cut(self.batch.take(p))).output.cpu() for p in parts])
        return found[torch.from_numpy(np.argsort(order))]

    def _remember_whole(self) -> None:
        """Note the readings of the whole texts, which are known from the reference."""
        rows = torch.arange(len(self))
        values = self._answers(rows, self.batch, self.reference.to(self.batch.valid.device))
        packed = np.packbits(self._valid(), axis=1)
        self._seen = {(i, packed[i].tobytes()): value for i, value in enumerate(values)}

    @torch.no_grad()
    def _reads_by_text(self) -> bool:
        """Whether the output has the same shape however much padding there is."""
        shortest = self.batch.take([int(self.batch.valid.sum(1).argmin())])
        narrow = cut(shortest)
        if narrow.shape == shortest.shape or "attention_mask" not in shortest.inputs:
            return False
        return self.subject.run(narrow).output.shape == self.subject.run(shortest).output.shape

    @torch.no_grad()
    def _check_dropping(self) -> None:
        """Dropped tokens move the others: a task that reads certain positions cannot be asked then."""
        keep = self.batch.valid[:1] & ~torch.from_numpy(self.removable[:1]).to(self.batch.valid.device)
        shape = None if self.batch.marks else self._visible([0], keep)[1].shape[1:]
        if shape != self.reference.shape[1:]:
            raise MethodError(
                f"tokens cannot be dropped for {type(self.subject.task).__name__}, which reads positions; "
                f"give replace='mask'"
            )

    @torch.no_grad()
    def _packing_is_exact(self) -> bool:
        """Try it on the first texts, with every other token hidden, and with all but the first hidden."""
        if self.batch.marks or not takes_positions(self.subject.module):
            return False
        rows = list(range(min(4, len(self))))
        place = torch.arange(self.batch.shape[1], device=self.batch.valid.device)
        shown = torch.from_numpy(~self.removable[rows]).to(place.device)
        for pattern in (place % 2 == 1, place <= 1):
            keep = (shown | pattern) & self.batch.valid[rows]
            fast, slow = self._visible(rows, keep)[1], self._masked(rows, keep)[1]
            if fast.shape != slow.shape or not torch.allclose(fast, slow, rtol=1e-3, atol=1e-3):
                return False
        return True


def packing(keep: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the visible tokens (rows, width), in order, and which of them are not padding."""
    lengths = keep.sum(1)
    width = max(1, int(lengths.max()))
    places = torch.argsort((~keep).to(torch.uint8), dim=1, stable=True)[:, :width]
    return places, torch.arange(width, device=keep.device) < lengths[:, None]


def cut(batch: Batch) -> Batch:
    """The batch without the columns that nothing attends to in any row."""
    attended = batch.inputs.get("attention_mask", batch.valid).bool() | batch.valid
    width = int(attended.any(0).nonzero().max()) + 1
    shape = batch.shape
    inputs = {n: v[:, :width] if v.shape[:2] == shape else v for n, v in batch.inputs.items()}
    return replace(
        batch,
        inputs=inputs,
        valid=batch.valid[:, :width],
        special=batch.special[:, :width],
        segments=batch.segments[:, :width],
    )


def _manner(how: Any) -> Manner | Baseline:
    if isinstance(how, Tensor):
        return Baseline(how)
    if isinstance(how, Baseline) or how in get_args(Manner):
        return how
    raise MethodError(
        f"cannot remove tokens by {how!r}; give 'mask', 'drop', a Baseline or a vector that stands for a "
        f"removed token's word embedding"
    )


def _fill_token(subject: Subject) -> int:
    """The mask token, or for a model without one the unknown or end token."""
    for name in ("mask", "unk", "eos", "pad"):
        found = getattr(subject.tokenizer, f"{name}_token_id", None)
        if found is not None:
            return int(found)
    raise ModelError(
        "this subject has no tokenizer with a mask token to hide tokens with; give a baseline vector that "
        "stands for a removed token (replace=tensor)"
    )
