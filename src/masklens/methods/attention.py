"""Attention weights as an explanation, raw or rolled out over the blocks."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from ..errors import MethodError
from .registry import Request, check_choice, register


@register(
    "attention",
    summary="How much attention each token gets in a block",
    cost="2",
    paper="De Cao et al. 2020, figure 6a; rollout: Abnar and Zuidema 2020",
    needs="attention weights",
    sites="blocks",
    only_blocks=True,
    exempt={
        "target": "attention is the same for every target",
        "planted": "attention need not follow what decides",
        "zero_effect": "attention is there whatever the head makes of it",
    },
)
def attention(request: Request, *, heads: str = "max", rollout: bool = False) -> Tensor:
    """The attention that a token gets in a block, averaged over the attending tokens. Block k has site k + 1.

    Args:
        heads: how heads are combined: "max" (as in the paper's figure) or "mean".
        rollout: follow the attention down to the input. The scores are then the product of the matrices of
            all blocks so far; each matrix is half attention (mean over heads) and half identity, for the
            residual connection.
    """
    check_choice("heads", heads, "max", "mean")
    _check_model(request)
    with torch.no_grad():
        weights = request.subject.attentions(request.batch)
        joined = {site: w.mean(1) if rollout or heads == "mean" else w.amax(1) for site, w in weights.items()}
        if rollout:
            joined = _rolled_out(joined)
        return torch.stack([_received(joined[site], request.batch.valid) for site in request.sites], dim=1)


def _check_model(request: Request) -> None:
    takes = inspect.signature(request.subject.module.forward).parameters.values()
    if not request.subject.blocks or not any(
        p.name == "output_attentions" or p.kind is p.VAR_KEYWORD for p in takes
    ):
        name = type(request.subject.module).__name__
        raise MethodError(f"{name} does not give attention weights; a Hugging Face transformer does")


def _rolled_out(joined: dict[int, Tensor]) -> dict[int, Tensor]:
    """The product of the blocks' matrices up to each block: (examples, tokens, tokens) by site."""
    total: Tensor | None = None
    rolled = {}
    for site in sorted(joined):
        step = 0.5 * joined[site] + 0.5 * torch.eye(joined[site].shape[-1]).to(joined[site])
        total = step if total is None else step @ total
        rolled[site] = total
    return rolled


def _received(weights: Tensor, valid: Tensor) -> Tensor:
    """(examples, tokens): the mean attention to each token, from weights (examples, from, to)."""
    share = valid / valid.sum(1, keepdim=True)
    return torch.einsum("ef,eft->et", share.to(weights), weights)
