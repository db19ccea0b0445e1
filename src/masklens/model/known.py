"""The outputs for the texts that were explained last, so that `verify` need not run these texts again.

    heard = Heard(subject); heard.add(rows, batch, output); heard.remember(targets)
    known = recall(subject, texts)           # the batch and the output, or None

A subject remembers the texts and outputs of one call of `explain`. They do not depend on the attributions.
They are forgotten if the model's weights, adapters or task have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..attribution import Text
from .batch import Batch
from .subject import Subject

MOST_NUMBERS = 2**24
"""the largest number of output values that are remembered: 64 MB"""
SAMPLED = 100
"""how many entries of each weight are compared, to find out whether it has changed"""
PLAIN = {bool, int, float, str, list}


class Known(NamedTuple):
    """Texts that were run already, and their outputs."""

    batch: Batch
    output: Tensor


_last: WeakKeyDictionary[Subject, tuple[Known, list[Any]]] = WeakKeyDictionary()


class Heard:
    """Collects the outputs for texts, batch by batch, and remembers them when all are done."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.rows, self.parts, self.numbers = subject, list[int](), list[Known](), 0
        _last.pop(subject, None)

    def add(self, rows: Sequence[int], batch: Batch, output: Tensor) -> None:
        """Add the output for a batch (it is moved to the CPU); `rows` are the numbers of its texts."""
        self.numbers += output.numel()
        if self.numbers > MOST_NUMBERS:
            self.parts.clear()
        else:
            self.rows += rows
            self.parts.append(Known(batch, output))

    def remember(self, targets: Sequence[Any]) -> None:
        """Store everything with the subject, unless it is too large or targets are part of the input."""
        if not self.parts or self.numbers > MOST_NUMBERS or _in_input(targets, self.parts[0].batch):
            return
        batch = _joined([part.batch for part in self.parts], getattr(self.subject._encode, "pad_id", 0))
        stamp = _stamp(self.subject)
        if batch is None or stamp is None:
            return
        outputs = [self.subject.task.widened(part.output, batch.shape[1]) for part in self.parts]
        if len({output.shape[1:] for output in outputs}) == 1:
            order = torch.tensor(self.rows).argsort()
            _last[self.subject] = Known(batch.take(order.tolist()), torch.cat(outputs)[order]), stamp


def _joined(batches: Sequence[Batch], pad_id: int) -> Batch | None:
    """One batch of all texts, padded to one length; None if their inputs have different forms."""
    width = max(batch.shape[1] for batch in batches)
    wide = [batch.widened(width, pad_id) if batch.by_token else batch for batch in batches]
    tensors = [(batch.valid, *batch.inputs.values(), *batch.marks.values()) for batch in wide]
    if len({tuple(value.shape[1:] for value in some) for some in tensors}) > 1:
        return None
    return Batch(
        **{one.name: _chained([getattr(batch, one.name) for batch in wide]) for one in fields(Batch)}
    )


def _chained(values: Sequence[Any]) -> Any:
    """The examples of several batches in one: tensors, tuples, or dicts of tensors."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], dict):
        return {name: torch.cat([value[name] for value in values]) for name in values[0]}
    return tuple(chain.from_iterable(values))


def _in_input(targets: Sequence[Any] | None, batch: Batch) -> bool:
    """Whether targets may be part of the input (see `Subject.encode`)."""
    return bool(batch.marks) and any(target is not None for target in targets or ())


def recall(subject: Subject, texts: Sequence[Text], targets: Sequence[Any] | None = None) -> Known | None:
    """The remembered batch and output for texts; None unless all are remembered and nothing has changed."""
    last = _last.get(subject)
    if last is None:
        return None
    (batch, output), stamp = last
    place = {text: i for i, text in enumerate(batch.texts)}
    if not all(text in place for text in texts) or _in_input(targets, batch) or _stamp(subject) != stamp:
        return None
    rows = [place[text] for text in texts]
    return Known(batch.take(rows).to(subject.device), output[rows])


def _stamp(subject: Subject) -> list[Any] | None:
    """Everything but the text that an output depends on: the task, samples of the weights, hooks, and plain
    settings of modules, such as whether an adapter is switched off. None if weights cannot be read."""
    modules = list(subject.module.modules())
    tensors = [*subject.module.parameters(), *subject.module.buffers()]
    if any(type(one) not in (Tensor, nn.Parameter) or one.is_meta for one in tensors):
        return None
    plain = [
        str(value)
        for module in modules
        for name, value in vars(module).items()
        if name != "training" and type(value) in PLAIN
    ]
    hooks = [[*module._forward_hooks, *module._forward_pre_hooks] for module in modules]
    written = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors]
    return [subject.task, plain, hooks, written, _samples(tensors, subject.device)]


@torch.no_grad()
def _samples(tensors: Sequence[Tensor], device: torch.device) -> list[float]:
    """Some entries of each tensor, copied from the device in one transfer."""
    some = [one.reshape(-1)[:: max(1, one.numel() // SAMPLED)].float().to(device) for one in tensors]
    return torch.cat(some).tolist() if some else []
