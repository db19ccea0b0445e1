"""What a fit belongs to, so that its checkpoint is taken up by no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from .networks import MaskRow, Over
from .texts import FrozenTexts

SAMPLED = 10_000
"""numbers of a tensor that are looked at"""


def identity(
    sets: Sequence[FrozenTexts], over: Over, rows: Sequence[MaskRow], start: nn.Module | None
) -> dict[str, str]:
    """What a checkpoint belongs to: the model, the texts and what each is for, and the form of the lens."""
    names = ("training texts", "validation texts", "held-out texts")
    texts = {
        name: _short_hash(repr(part.batch.texts).encode()) for name, part in zip(names, sets, strict=True)
    }
    return {
        "model": _short_hash(*_samples(sets[0].subject.module)),
        **texts,
        "over": str(over),
        "rows": ", ".join(f"{row.edit}<-{row.reads}" for row in rows),
        "start": "none" if start is None else _short_hash(*_samples(start)),
    }


def _short_hash(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]


def _samples(module: nn.Module) -> Iterator[bytes]:
    """Numbers from all over a module's tensors, at most SAMPLED of each: they tell which module it is."""
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if value.is_meta:  # a weight that is loaded as it is needed
            continue
        some = value.detach().reshape(-1)[:: max(1, value.numel() // SAMPLED)]
        yield f"{name}{tuple(value.shape)}".encode()
        yield some.double().cpu().numpy().tobytes()
