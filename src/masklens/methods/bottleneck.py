"""The per-sample information bottleneck of Schulz et al. 2020, with one gate per token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import MethodError
from .batching import stacked
from .fitting import Loss, fitted
from .registry import Request, check_count, register

Statistics = tuple[Tensor, Tensor]
"""mean and standard deviation of the states; each broadcasts to (examples, tokens, width)"""

START = 5.0
"""alpha of every token at the start: lambda = 0.993"""


@register(
    "information_bottleneck",
    summary="How much of each token's state is needed, found by adding noise to it",
    cost="3 n_steps",
    paper="Schulz et al. 2020",
    needs="gradients; statistics of the states (the text's own by default)",
    exempt={"zero_effect": "the share let through tends to zero, but is above it after any number of steps"},
    quick={"n_steps": 5},
)
def information_bottleneck(
    request: Request,
    *,
    n_steps: int = 50,
    lr: float = 0.1,
    weight: float = 10.0,
    statistics: Any = None,
) -> Tensor:
    """lambda = sigmoid(alpha) of each token: the share of its state that is let through.

    Minimises -log p(target) + weight x KL over alpha. The state h is replaced by
    z = lambda h + (1 - lambda) e with e ~ N(mean, std). KL is the divergence of z's distribution from
    N(mean, std), averaged over features and tokens. Each text is optimised separately, with centered RMSprop
    and one noise sample per step.

    Args:
        n_steps: optimisation steps for each text. The default is the DiffMask paper's for SST; for the toy
            task and SQuAD it uses 500.
        weight: the weight of KL, in nats, beside the loss of the prediction.
        statistics: (mean, std), each a tensor that broadcasts to the state, or a dict of them by site. By
            default they are computed over the tokens of the text itself, so that its result does not depend
            on other texts. The paper uses statistics of a corpus.
    """
    check_count("n_steps", n_steps)

    def gates(site: int) -> Tensor:
        loss = _cost_of_information(request, site, weight, statistics)
        return fitted(request, request.states()[site], START, n_steps, lr, loss).sigmoid()

    return stacked(request, gates)


def _cost_of_information(request: Request, site: int, weight: float, statistics: Any) -> Loss:
    state, task = request.states()[site], request.subject.task
    mean, std = _statistics(request, site, state, statistics)

    def loss(alpha: Tensor, noise: Tensor) -> Tensor:
        keep = alpha.sigmoid()[:, :, None]  # (examples, tokens, 1)
        narrowed = keep * state + (1 - keep) * (mean + std * noise)
        narrowed = torch.where(request.batch.valid[:, :, None], narrowed, state)
        output = request.subject.run(request.batch, replace={site: narrowed}).output
        information = tokens_mean(divergence_from_prior(alpha, (state - mean) / std), request.batch.valid)
        return weight * information - task.log_probability(output, request.target)

    return loss


def divergence_from_prior(alpha: Tensor, standard: Tensor) -> Tensor:
    """KL(N(lambda r, (1 - lambda)^2) || N(0, 1)) averaged over features: (examples, tokens).

    `standard` is r = (h - mean) / std; the KL does not change when both sides are standardised.
    """
    keep = alpha.sigmoid()[:, :, None]
    log_var = (
        2 * torch.nn.functional.logsigmoid(-alpha)[:, :, None]
    )  # log (1 - lambda)^2 without cancellation
    return (0.5 * ((keep * standard) ** 2 + log_var.exp() - log_var - 1)).mean(-1)


def tokens_mean(values: Tensor, valid: Tensor) -> Tensor:
    """The mean over each example's tokens: (examples,)."""
    return (values * valid).sum(1) / valid.sum(1)


def _statistics(request: Request, site: int, state: Tensor, given: Any) -> Statistics:
    if isinstance(given, dict):
        if site not in given:
            raise MethodError(f"no statistics for site {site}; there are some for sites {sorted(given)}")
        given = given[site]
    if given is None:
        return own_statistics(state, request.batch.valid)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise MethodError(
            f"statistics must be (mean, std) or a dict of them by site, not {type(given).__name__}"
        )
    mean, std = (torch.as_tensor(value).to(state) for value in given)
    return mean, std.clamp(min=SMALLEST_STD)


SMALLEST_STD = 0.01
"""the smallest standard deviation of the prior; the code of Schulz et al. has the same floor"""


def own_statistics(state: Tensor, valid: Tensor) -> Statistics:
    """Mean and standard deviation of each text's own states: (examples, 1, width) each."""
    share = (valid.to(state.dtype) / valid.sum(1, keepdim=True))[:, :, None]
    mean = (share * state).sum(1, keepdim=True)
    variance = (share * (state - mean) ** 2).sum(1, keepdim=True)
    return mean, variance.sqrt().clamp(min=SMALLEST_STD)
