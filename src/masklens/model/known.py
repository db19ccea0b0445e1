"""What a model said about the texts that were explained last, so that `verify` need not run them again.

    heard = Heard(subject); heard.add(rows, batch, output); heard.remember(subject, targets)
    known = recall(subject, texts)           # the batch and the output, or None

A subject remembers one call of `explain`. What is remembered belongs to the texts, whatever becomes of their
attributions. It is forgotten if the model's weights, adapters or task are no longer the same.
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
"""of the outputs that are remembered: 64 MB"""
SAMPLED = 100
"""numbers of a weight that are looked at"""
PLAIN = {bool, int, float, str, list}


class Known(NamedTuple):
    """Texts that went through the model already."""

    batch: Batch
    output: Tensor


class Heard:
    """What a model says about texts, one batch after the other, to be remembered when all are done."""

    def __init__(self, subject: Subject) -> None:
        self.task, self.pad_id = subject.task, getattr(subject._encode, "pad_id", 0)
        self.rows, self.parts, self.numbers = list[int](), list[Known](), 0
        _last.pop(subject, None)

    def add(self, rows: Sequence[int], batch: Batch, output: Tensor) -> None:
        """What was said about a batch, on the CPU; `rows` are the places of its texts among all."""
        self.numbers += output.numel()
        if self.numbers > MOST_NUMBERS:
            self.parts.clear()
        else:
            self.rows += rows
            self.parts.append(Known(batch, output))

    def remember(self, subject: Subject, targets: Sequence[Any]) -> None:
        """Keep it all, unless it is too much, or targets are part of the input."""
        if not self.parts or self.numbers > MOST_NUMBERS or _in_input(targets, self.parts[0].batch):
            return
        stamp = _stamp(subject)
        if stamp is not None:
            _last[subject] = self, stamp

    def joined(self) -> Known | None:
        """All in the order of the texts; None if the inputs or outputs of some have another form."""
        batch = _joined([part.batch for part in self.parts], self.pad_id)
        if batch is None:
            return None
        outputs = [self.task.widened(part.output, batch.shape[1]) for part in self.parts]
        if len({output.shape[1:] for output in outputs}) > 1:
            return None
        order = torch.tensor(self.rows).argsort()
        return Known(batch.take(order.tolist()), torch.cat(outputs)[order])


_last: WeakKeyDictionary[Subject, tuple[Heard | Known | None, list[Any]]] = WeakKeyDictionary()
"""what was heard, and the stamp of that time; batches are joined when they are first asked for"""


def _joined(batches: Sequence[Batch], pad_id: int) -> Batch | None:
    """One batch of all the texts, padded to one length; None if the inputs of some have another form."""
    width = max(batch.shape[1] for batch in batches)
    wide = [batch.widened(width, pad_id) if batch.by_token else batch for batch in batches]
    tensors = [(batch.valid, *batch.inputs.values(), *batch.marks.values()) for batch in wide]
    if len({tuple(value.shape[1:] for value in some) for some in tensors}) > 1:
        return None
    return Batch(
        **{one.name: _chained([getattr(batch, one.name) for batch in wide]) for one in fields(Batch)}
    )


def _chained(values: Sequence[Any]) -> Any:
    """The examples of several batches: tensors, tuples, or dicts of tensors."""
    if isinstance(values[0], Tensor):
        return torch.cat(list(values))
    if isinstance(values[0], dict):
        return {name: torch.cat([value[name] for value in values]) for name in values[0]}
    return tuple(chain.from_iterable(values))


def _in_input(targets: Sequence[Any] | None, batch: Batch) -> bool:
    """Whether targets may be part of the input (see `Subject.encode`)."""
    return bool(batch.marks) and any(target is not None for target in targets or ())


def recall(subject: Subject, texts: Sequence[Text], targets: Sequence[Any] | None = None) -> Known | None:
    """What the model said about texts, if all are remembered and nothing has changed since."""
    last = _last.get(subject)
    if last is None:
        return None
    known, stamp = last
    if isinstance(known, Heard):
        known = known.joined()
        _last[subject] = known, stamp
    if known is None:
        return None
    batch, output = known
    place = {text: i for i, text in enumerate(batch.texts)}
    if not all(text in place for text in texts) or _in_input(targets, batch) or _stamp(subject) != stamp:
        return None
    rows = [place[text] for text in texts]
    return Known(batch.take(rows).to(subject.device), output[rows])


def _stamp(subject: Subject) -> list[Any] | None:
    """What an output depends on beside the text: the task, the weights, and the plain settings of modules,
    such as an adapter that is switched off, and hooks. None where weights cannot be looked at."""
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
    """Some numbers of each tensor, read from the device at once."""
    some = [one.reshape(-1)[:: max(1, one.numel() // SAMPLED)].float().to(device) for one in tensors]
    return torch.cat(some).tolist() if some else []
