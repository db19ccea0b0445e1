"""Modes of torch that are switched for a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


def let_learn(places: Iterable[tuple[dict[str, nn.Parameter | None], str]], learn: bool) -> None:
    """Switch gradients of weights on or off; a place is a module's weights and a name."""
    for own, name in places:
        parameter = own[name]
        if parameter is not None:
            parameter.requires_grad_(learn)


@contextmanager
def without_derivative_no_gradient() -> Iterator[None]:
    """Inside the block, what an operation without a derivative gives has no gradient. By default torch gives
    it one that is zero."""
    before = torch._C._get_autograd_fallback_mode()
    torch._C._set_autograd_fallback_mode("nothing")
    try:
        yield
    finally:
        torch._C._set_autograd_fallback_mode(before)


PACKS = "support_avx512bf16_for_cpu"
"""what lets a 4-bit layer of bitsandbytes pack its weights for a CPU"""


@contextmanager
def unpacked(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block, no 4-bit layer packs its weights, as it does on some CPUs when it first runs without
    gradients: a packed layer passes no gradient. Layers that are packed already stay so."""
    packing = [own for own in map(vars, modules) if own.get(PACKS)]
    try:
        for own in packing:
            own[PACKS] = False
        yield
    finally:
        for own in packing:
            own[PACKS] = True


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Nothing is made in torch.inference_mode here: what is made there can never have a gradient."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield
