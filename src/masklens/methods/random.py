"""Random scores, which every explanation has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import Request, register


@register(
    "random",
    summary="Uniform random scores, the floor for every comparison",
    cost="1",
    paper="Hou and Castanon 2023, section 3.1",
    needs="nothing",
    exempt={
        "target": "it knows nothing about the model",
        "planted": "it knows nothing about the model",
        "zero_effect": "it knows nothing about the model",
    },
)
def random(request: Request) -> Tensor:
    """Uniform on [0, 1), drawn from the seed and the text."""
    return request.noise(len(request.sites), 1, torch.rand)[..., 0]
