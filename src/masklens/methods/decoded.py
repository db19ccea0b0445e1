"""Decoded Grad-CAM: the saliency of a layer, translated to input tokens by the LM head."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import MethodError
from ..model.lm_head import LogitHead, find_head
from .batching import stacked
from .gradient import integrated_gradients, slopes
from .registry import Request, check_choice, check_count, register

LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}
"""how many logits are in memory at once, at most"""
BEYOND = torch.iinfo(torch.int64).max
"""a token id that no token has; it sorts after all others"""

SCORES = ("gradcam", "grad_x_input", "gradient_norm", "integrated_gradients")


@register(
    "decoded_gradcam",
    summary="A layer's evidence, decoded to input tokens by the pre-trained model's LM head",
    cost="2, plus about 0.15 per layer for the vocabulary",
    paper="Hou and Castanon 2023",
    needs="gradients; the LM head of the pre-trained model",
    sites="blocks",
)
def decoded_gradcam(
    request: Request,
    *,
    lm_head: Any = None,
    tau: int | None = None,
    score: str = "gradcam",
    n_steps: int = 50,
    tokens: str | None = None,
) -> Tensor:
    """s = D alpha at each site (equation 5): all sites from one forward and one backward pass.

    alpha are the scores of the positions at the site (equation 1 by default). Row i of D holds, for each
    position, the probability that the LM head gives the i-th unique input token (equation 3). A token that
    occurs at several positions has one score, shown at each.

    Args:
        lm_head: the language model that this model was fine-tuned from: a path, a hub id, or the model; or
            any module from states to logits. By default the model's own head, where its checkpoint has one.
        tau: let a position add to its `tau` most probable input tokens only; by default to all.
        score: what alpha is: "gradcam", "grad_x_input" (without the ReLU), "gradient_norm", or
            "integrated_gradients" (at the site, with `n_steps`).
        tokens: which tokens get the score of a position: "own", those that the head expects at the position
            itself (the default), or "next", those that it expects after it. The head of a causal model
            predicts the next token, so "own" decodes the state of the position before, and the first position
            keeps its score. The head of a masked model allows "own" only.

    Positions where alpha is zero add nothing and are not decoded.
    """
    if tau is not None:
        check_count("tau", tau)
    head = find_head(request.subject, lm_head)
    before = decodes_before(head, tokens)
    alpha, states = _scored(request, score, n_steps)
    types = token_types(request)
    return _spread(types, _decode(request, head, types, alpha, states, tau, before))


def decodes_before(head: LogitHead, tokens: str | None) -> bool:
    """Whether the score of a position is decoded with the state of the position before it."""
    causal = getattr(head, "names_next", False)
    if tokens is not None:
        check_choice("tokens", tokens, "own", "next")
    if tokens == "next" and not causal:
        raise MethodError("tokens='next' needs the head of a causal language model; this one has only 'own'")
    return causal and tokens != "next"


class TokenTypes(NamedTuple):
    """The unique tokens of each text, padded to the number of its positions."""

    ids: Tensor
    """(examples, tokens): token ids in order, 0 beyond the last"""
    real: Tensor
    """(examples, tokens) bool: False beyond the last"""
    place: Tensor
    """(examples, tokens): the number of the unique token at each position"""


def token_types(request: Request) -> TokenTypes:
    """The unique tokens among the positions of each text that are not padding."""
    batch = request.batch
    if "input_ids" not in batch.inputs:
        raise MethodError("decoded_gradcam needs token ids; this subject's inputs have no input_ids")
    ids, order = batch.inputs["input_ids"].masked_fill(~batch.valid, BEYOND).sort(dim=1)
    first = F.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)  # the first position of each token id
    numbers = first.cumsum(1) - 1
    unique = torch.full_like(ids, BEYOND).scatter(1, numbers, ids)
    real = unique != BEYOND
    return TokenTypes(unique.where(real, 0), real, torch.zeros_like(ids).scatter(1, order, numbers))


def _scored(request: Request, score: str, n_steps: int) -> tuple[Tensor, dict[int, Tensor]]:
    """alpha (examples, sites, tokens) and the states (examples, tokens, width) by site."""
    check_choice("score", score, *SCORES)
    if score == "integrated_gradients":
        alpha = integrated_gradients(request, n_steps=n_steps)
        return alpha, request.states()
    found = slopes(request)
    states = {site: slope.state for site, slope in found.items()}
    if score == "gradient_norm":
        return stacked(request, lambda site: found[site].gradient.norm(dim=-1)), states
    product = stacked(request, lambda site: (found[site].gradient * found[site].state).sum(-1))
    return product.relu() if score == "gradcam" else product, states


@torch.no_grad()
def _decode(
    request: Request,
    head: LogitHead,
    types: TokenTypes,
    alpha: Tensor,
    states: dict[int, Tensor],
    tau: int | None,
    before: bool = False,
) -> Tensor:
    """The score s of every unique token: (examples, sites, types)."""
    if len({states[site].shape[-1] for site in request.sites}) > 1:
        raise MethodError(
            "the states at these sites differ in width; the LM head reads those after the blocks"
        )
    scores = torch.zeros(*alpha.shape[:2], types.ids.shape[1], device=alpha.device, dtype=torch.float32)
    where = ((alpha != 0) & request.batch.valid[:, None]).transpose(0, 1).nonzero()  # (positions, 3)
    if not len(where):
        return scores
    counts = where[:, 0].bincount(minlength=len(request.sites)).tolist()
    width = _vocabulary(head, types, states[request.sites[0]])
    at_once = max(1, LOGITS_AT_ONCE.get(alpha.device.type, LOGITS_AT_ONCE["cpu"]) // width)
    for number, positions in zip(request.sites, where.split(counts), strict=True):
        for site, example, token in (part.unbind(1) for part in positions.split(at_once) if len(part)):
            source = (token - 1).clamp(min=0) if before else token
            logits = head(states[number][example, source])
            shares = _shares(logits, types.ids[example], types.real[example], tau)
            if before:
                own = _only(types.place[:, 0][example], shares)
                shares = torch.where((token == 0)[:, None], own, shares)
            added = shares * alpha[example, site, token][:, None]
            scores.index_put_((example, site), added.to(scores.dtype), accumulate=True)
    return scores


def _vocabulary(head: LogitHead, types: TokenTypes, state: Tensor) -> int:
    """How many logits the head gives for a position, found by running it on one position."""
    logits, highest = head(state[0, :1]), int(types.ids.max())
    if logits.dim() != 2 or logits.shape[1] <= highest:
        raise MethodError(
            f"the LM head gave logits of shape {tuple(logits.shape)}; (positions, vocabulary) with token "
            f"{highest} in the vocabulary is needed: give the head that belongs to this model's tokenizer"
        )
    return logits.shape[1]


def _shares(logits: Tensor, ids: Tensor, real: Tensor, tau: int | None) -> Tensor:
    """Columns of D: the probabilities (positions, types) of the given tokens, softmax over the vocabulary."""
    shares = (logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)).exp() * real
    if tau is None or tau >= shares.shape[1]:
        return shares
    top = shares.topk(tau, dim=1)
    return torch.zeros_like(shares).scatter(1, top.indices, top.values)


def _only(place: Tensor, like: Tensor) -> Tensor:
    """1 for the type at the place, 0 for all others: (positions, types)."""
    return torch.zeros_like(like).scatter(1, place[:, None], 1.0)


def _spread(types: TokenTypes, scores: Tensor) -> Tensor:
    """The score of the token at each position: (examples, sites, tokens)."""
    place = types.place[:, None].expand(-1, scores.shape[1], -1)
    return scores.gather(2, place)
