"""Fit one number per token, for each text separately, by gradient descent with noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..progress import track
from .registry import Request

Loss = Callable[[Tensor, Tensor], Tensor]
"""from the numbers (examples, tokens) and standard normal noise in the shape of the state to (examples,)"""


def fitted(request: Request, state: Tensor, start: float, n_steps: int, lr: float, loss: Loss) -> Tensor:
    """The numbers (examples, tokens) after `n_steps` steps of centered RMSprop, with one noise sample each.

    The texts share no numbers, so the loss of each text is minimised separately.
    """
    numbers = torch.full(
        request.batch.shape, start, device=state.device, dtype=torch.float32, requires_grad=True
    )
    optimizer = torch.optim.RMSprop([numbers], lr=lr, centered=True)
    for _, noise in zip(track(range(n_steps), "steps"), request.draws(state.shape[-1]), strict=False):
        with torch.enable_grad():
            value = loss(numbers, noise.to(state)).sum()
        (numbers.grad,) = torch.autograd.grad(value, numbers)
        optimizer.step()
    return numbers.detach()
