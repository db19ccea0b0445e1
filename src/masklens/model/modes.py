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
def outside_inference_mode() -> Iterator[None]:
    """Nothing is made in torch.inference_mode here: what is made there can never have a gradient."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield
