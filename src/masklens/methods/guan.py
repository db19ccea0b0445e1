"""The noise-based information measure of Guan et al. 2019, with one noise level a token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import MethodError
from . import Request, register
from .gradient import check_count


@register(
    "guan",
    summary="How much noise each token's state bears before the output changes",
    cost="3 n_steps",
    paper="Guan et al. 2019",
    exempt={
        "target": "it explains the whole output, not one target",
        "zero_effect": "1 / sigma is positive; with no effect it is the same for all tokens",
    },
    quick={"n_steps": 5},
)
def guan(
    request: Request,
    *,
    n_steps: int = 50,
    lr: float = 0.1,
    weight: float = 0.1,
    start: float = -5.0,
    score: str = "inverse",
) -> Tensor:
    """1 / sigma of each token, sigma being the largest noise that leaves the output nearly as it was.

    Minimises, over sigma = softplus(raw), the squared change of the output for h + sigma e, e ~ N(0, 1),
    minus weight x the noise's entropy, sum log sigma over the text's tokens. One noise sample a step,
    centered RMSprop, each text by itself.

    Args:
        n_steps, lr, weight: the DiffMask paper's settings for SST. Its toy task: 500 steps, weight 1 over
            1,000 texts together, that is 0.001 for each; SQuAD: 500 steps, weight 5.
        start: raw at the start.
        score: "inverse" for 1 / sigma, or "negative" for -sigma (the paper's SST figure).
    """
    check_count("n_steps", n_steps)
    if score not in ("inverse", "negative"):
        raise MethodError(f"score={score!r} is not known; give 'inverse' (1 / sigma) or 'negative' (-sigma)")
    states = request.states()
    sigma = torch.stack(
        [_noise_levels(request, site, states[site], n_steps, lr, weight, start) for site in request.sites],
        dim=1,
    )
    return 1 / sigma if score == "inverse" else -sigma


def _noise_levels(
    request: Request, site: int, state: Tensor, n_steps: int, lr: float, weight: float, start: float
) -> Tensor:
    """The fitted sigmas at one site: (examples, tokens)."""
    raw = torch.full(request.batch.shape, start, device=state.device, requires_grad=True)
    optimizer = torch.optim.RMSprop([raw], lr=lr, centered=True)
    for _, noise in zip(range(n_steps), request.draws(state.shape[-1]), strict=False):
        with torch.enable_grad():
            sigma = F.softplus(raw)
            noisy = state + sigma[:, :, None] * noise.to(state)
            output = request.subject.run(request.batch, replace={site: noisy}).output
            entropy = (sigma.log() * request.batch.valid).sum(1)
            loss = squared_change(request.reference, output) - weight * entropy  # (examples,)
        (raw.grad,) = torch.autograd.grad(loss.sum(), raw)
        optimizer.step()
    return F.softplus(raw.detach())


def squared_change(reference: Tensor, output: Tensor) -> Tensor:
    """The squared distance of two outputs, without entries at -inf (impossible answers): (examples,)."""
    possible = reference.isfinite()
    change = torch.where(possible, output, 0.0) - torch.where(possible, reference, 0.0)
    return (change**2).flatten(1).sum(1) if change.dim() > 1 else change**2
