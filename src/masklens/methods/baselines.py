"""The baseline of an explanation: the state that stands for a missing token at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import MethodError
from .registry import Request


def absent_state(request: Request, site: int, state: Tensor, default: Any = "zero") -> Tensor:
    """The baseline at a site, in the shape of `state` (examples, tokens, width).

    Positions that hold no token of the text (padding, or a continuation that is part of the target) keep
    their own state.

    `request.baselines` may be

    - "zero",
    - "pad", "mask" or a token id: the state that the text has at that site when every token that is not
      special is replaced by that token,
    - a tensor that broadcasts to the state, or a dict of them by site.
    """
    given = default if request.baselines is None else request.baselines
    return torch.where(request.batch.valid[:, :, None], _baseline(request, site, state, given), state)


def _baseline(request: Request, site: int, state: Tensor, given: Any) -> Tensor:
    """The baseline before the positions are distinguished, as a tensor that broadcasts to the state."""
    if isinstance(given, Mapping):
        if site not in given:
            raise MethodError(f"no baseline for site {site}; there are baselines for sites {sorted(given)}")
        given = given[site]
    if isinstance(given, Tensor):
        return _fitting(given.to(state), state, site)
    if isinstance(given, str) and given == "zero":
        return torch.zeros_like(state[:1, :1])
    return _state_of_token(request, site, token_id(request, given))


@torch.no_grad()
def expect_from(request: Request, site: int, baselines: Tensor) -> None:
    """Note the expected sum of additive scores at a site, for baselines (examples, kinds, tokens, width).

    It is the target's score minus its score with the states of the baseline, averaged over the baselines.
    """
    subject = request.subject
    found = [
        subject.task.score(subject.run(request.batch, replace={site: one}).output, request.target)
        for one in baselines.unbind(1)
    ]
    request.expect(torch.stack(found).mean(0))


def mask_or_zero(request: Request) -> str:
    """The default baseline of methods that remove tokens: "mask" if there is a mask token, else "zero"."""
    return "zero" if getattr(request.subject.tokenizer, "mask_token_id", None) is None else "mask"


def token_id(request: Request, given: Any) -> int:
    """A token id from "pad", "mask" or an id."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if given not in ("pad", "mask"):
        raise MethodError(
            f"baselines={given!r} is not known; give 'zero', 'pad', 'mask', a token id or a tensor"
        )
    found = getattr(request.subject.tokenizer, f"{given}_token_id", None)
    if found is None:
        raise MethodError(f"this subject's tokenizer has no {given} token; give baselines='zero' or a tensor")
    return found


def _state_of_token(request: Request, site: int, token: int) -> Tensor:
    """The state of the texts after every token that is not special was replaced."""
    batch = request.whole if request.shared else request.batch
    if "input_ids" not in batch.inputs:
        raise MethodError(
            "this subject has no input_ids to replace tokens in; give baselines='zero' or a tensor"
        )
    ids = torch.where(batch.special | ~batch.valid, batch.inputs["input_ids"], token)
    emptied = replace(batch, inputs={**batch.inputs, "input_ids": ids})
    return request.subject.states(emptied, [site]).states[site]  # with a shared text: one for all examples


def _fitting(baseline: Tensor, state: Tensor, site: int) -> Tensor:
    try:
        fits = torch.broadcast_shapes(baseline.shape, state.shape) == state.shape
    except RuntimeError:
        fits = False
    if not fits:
        shape, wanted = tuple(baseline.shape), tuple(state.shape)
        raise MethodError(f"a baseline of shape {shape} does not fit the state {wanted} at site {site}")
    return baseline
