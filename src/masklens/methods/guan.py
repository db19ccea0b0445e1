"""The noise-based information measure of Guan et al. 2019, with one noise level per token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .batching import stacked
from .fitting import Loss, fitted
from .registry import Request, check_choice, check_count, register

START = -5.0
"""raw of every token at the start: sigma = 0.007"""


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
    score: str = "inverse",
) -> Tensor:
    """1 / sigma of each token, where sigma is the largest noise that hardly changes the output.

    Minimises, over sigma = softplus(raw), the squared change of the output for h + sigma e, e ~ N(0, 1),
    minus weight x the noise's entropy, sum log sigma over the text's tokens. Each text is optimised
    separately, with centered RMSprop and one noise sample per step.

    Args:
        n_steps: optimisation steps for each text. The default is the DiffMask paper's for SST; for the toy
            task and SQuAD it uses 500.
        weight: the weight of the entropy. The paper uses 0.1 for SST, 0.001 for the toy task (1 over 1,000
            texts together) and 5 for SQuAD.
        score: "inverse" for 1 / sigma, or "negative" for -sigma (the paper's SST figure).
    """
    check_count("n_steps", n_steps)
    check_choice("score", score, "inverse", "negative")

    def levels(site: int) -> Tensor:
        loss = _cost_of_noise(request, site, weight)
        return F.softplus(fitted(request, request.states()[site], START, n_steps, lr, loss))

    sigma = stacked(request, levels)
    return 1 / sigma if score == "inverse" else -sigma


def _cost_of_noise(request: Request, site: int, weight: float) -> Loss:
    state = request.states()[site]

    def loss(raw: Tensor, noise: Tensor) -> Tensor:
        sigma = F.softplus(raw)
        noisy = state + sigma[:, :, None] * noise
        output = request.subject.run(request.batch, replace={site: noisy}).output
        entropy = (sigma.log() * request.batch.valid).sum(1)
        return squared_change(request.reference, output) - weight * entropy

    return loss


def squared_change(reference: Tensor, output: Tensor) -> Tensor:
    """The squared distance of two outputs, without entries at -inf (impossible answers): (examples,)."""
    possible = reference.isfinite()
    change = torch.where(possible, output, 0.0) - torch.where(possible, reference, 0.0)
    return (change**2).flatten(1).sum(1) if change.dim() > 1 else change**2
