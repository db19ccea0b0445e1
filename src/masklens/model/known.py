"""The outputs for the texts that were explained last, so that `verify` need not run these texts again.

    heard = Heard(subject); heard.add(rows, batch, output); heard.remember(subject, targets)
    known = recall(subject, texts)           # the batch and the output, or None

A subject remembers one call of `explain`. What is remembered belongs to the texts, whatever becomes of their
attributions. It is forgotten if a number of the model's weights, a setting of a module, such as an adapter's,
or the task is no longer the same, and nothing is remembered of a model with hooks.
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
MOST_INPUTS = 2**24
"""numbers of the encoded texts, padded to one length: about 150 MB"""
PLAIN = {bool, int, float, complex, str, type(None)}
WHOLE = torch.int64, torch.int32, torch.int16, torch.uint8
OWN = vars(nn.Module()).keys()
"""what every module has: its mode, its weights, its parts and its hooks"""


class Known(NamedTuple):
    """Texts that were run already, and their outputs."""

    batch: Batch
    output: Tensor


class Heard:
    """Collects the outputs for texts, batch by batch, and remembers them when all are done."""

    def __init__(self, subject: Subject) -> None:
        self.task, self.pad_id = subject.task, getattr(subject._encode, "pad_id", 0)
        self.rows, self.parts = list[int](), list[Known]()
        self.numbers = self.width = 0
        _last.pop(subject, None)

    def add(self, rows: Sequence[int], batch: Batch, output: Tensor) -> None:
        """What was said about a batch, on the CPU; `rows` are the places of its texts among all."""
        self.rows += rows
        self.numbers += output.numel()
        width = sum(value[0].numel() for value in (batch.valid, *batch.inputs.values()))
        self.width = max(self.width, width)
        if self.too_much:
            self.parts.clear()
        else:
            self.parts.append(Known(batch, output))

    @property
    def too_much(self) -> bool:
        """Whether the outputs are too many numbers, or the texts are when they are padded to one length."""
        return self.numbers > MOST_NUMBERS or len(self.rows) * self.width > MOST_INPUTS

    def remember(self, subject: Subject, targets: Sequence[Any]) -> None:
        """Keep it all, unless it is too much, or targets are part of the input."""
        if not self.parts or self.too_much or _in_input(targets, self.parts[0].batch):
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


_last: WeakKeyDictionary[Subject, tuple[Heard | Known | None, Stamp]] = WeakKeyDictionary()
"""what was heard, and the stamp of that time; batches are joined when they are first asked for"""


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
    known, stamp = last
    if isinstance(known, Heard):
        known = known.joined()
        _last[subject] = known, stamp
    if known is None:
        return None
    batch, output = known
    place = {text: i for i, text in enumerate(batch.texts)}
    if _in_input(targets, batch) or not all(text in place for text in texts):
        return None
    if not stamp.same(_stamp(subject)):
        return None
    rows = [place[text] for text in texts]
    return Known(batch.take(rows).to(subject.device), output[rows])


class Stamp(NamedTuple):
    """What an output depends on beside the text."""

    settings: list[Any]
    sums: Tensor
    """of the bits of each row of the weights, (rows,)"""

    def same(self, other: Stamp | None) -> bool:
        return other is not None and self.settings == other.settings and torch.equal(self.sums, other.sums)


@torch.no_grad()
def _stamp(subject: Subject) -> Stamp | None:
    """The task, how texts are encoded, the settings of modules, such as an adapter that is switched off, and
    all weights. None where there are weights or hooks that cannot be looked into."""
    modules = list(subject.module.modules())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    if hooked or nn.modules.module._has_any_global_hook():
        return None  # what a hook does may depend on anything
    things = [vars(module) for module in modules]
    loose = [value for own in things for value in own.values() if isinstance(value, Tensor)]
    tensors = [*subject.module.parameters(), *subject.module.buffers(), *loose]
    packed = any(isinstance(value, torch.ScriptObject) for own in things for value in own.values())
    if packed or any(type(one) not in (Tensor, nn.Parameter) or one.is_meta for one in tensors):
        return None
    configs = {id(own["config"]): own["config"] for own in things if "config" in own}
    encode, tokenizer, device = subject._encode, subject.tokenizer, subject.device
    settings = [
        [subject.task, encode, tokenizer, getattr(tokenizer, "truncation_side", None)],
        len(tokenizer) if hasattr(tokenizer, "__len__") else 0,
        [_settings(one) for one in (encode, *configs.values(), *modules)],
        [(one.shape, one.dtype) for one in tensors],
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
    ]
    try:
        sums = [_row_sums(one).to(device) for one in tensors]
    except RuntimeError:  # no rows of numbers, as in a sparse tensor
        return None
    return Stamp(settings, torch.cat(sums) if sums else torch.zeros(0))


def _settings(thing: Any) -> list[Any]:
    """What is set on an object: plain values as they are written, and functions, such as another forward."""
    given = getattr(thing, "__dict__", {})
    return [
        (name, value if callable(value) else repr(value))
        for name, value in given.items()
        if name not in OWN and (callable(value) or _is_plain(value))
    ]


def _is_plain(value: Any) -> bool:
    """Whether it is a number or a string, or holds nothing else."""
    if isinstance(value, dict):
        return all(map(_is_plain, chain.from_iterable(value.items())))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple | set) else type(value) in PLAIN


def _row_sums(weight: Tensor) -> Tensor:
    """The bits of each row, or of each number of a vector, summed as whole numbers: (rows,). A change of one
    number always changes its sum."""
    rows = weight.flatten(1) if weight.dim() > 1 else weight.reshape(-1, 1)
    size = rows.shape[1] * rows.element_size()
    whole = next(kind for kind in WHOLE if size % kind.itemsize == 0)
    return rows.contiguous().view(torch.uint8).view(whole).sum(1)
