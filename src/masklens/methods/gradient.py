"""Methods that read gradients: gradient, grad_x_input, gradcam, smoothgrad, integrated_gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import SiteError
from ..model.batch import moved
from ..progress import track
from ..records.layers import site_name
from .baselines import absent_state, expect_from
from .batching import pairs, rows_at_once, site_by_site, stacked
from .registry import Request, check_choice, check_count, register

GAP = 0.1
"""how far the sum of integrated gradients may be from theory, in scores and as a share, without a warning"""
Objective = Callable[[Tensor, Tensor], Tensor]
"""from an output and a target to one value per example"""


class Slope(NamedTuple):
    """A state and the gradient of the score with respect to it, both (examples, tokens, width)."""

    state: Tensor
    gradient: Tensor


def slopes(request: Request, objective: Objective | None = None) -> dict[int, Slope]:
    """States and gradients at every requested site, from one forward and one backward pass.

    The gradient is that of the task's score unless another objective is given. The lowest site is made
    the leaf of the graph, so autograd does not go through the blocks below it.
    """
    subject, lowest = request.subject, min(request.sites)
    leaf = {lowest: lambda state: state.detach().requires_grad_()}
    with torch.enable_grad():
        output, states = subject.run(request.batch, replace=leaf, record=request.sites)
        request.note(output)
        value = (objective or subject.task.score)(output, request.target).sum()
    found = torch.autograd.grad(value, [states[site] for site in request.sites], allow_unused=True)
    return {
        site: Slope(states[site].detach(), _used(site, g))
        for site, g in zip(request.sites, found, strict=True)
    }


def sloped(request: Request, score: Callable[[Slope], Tensor]) -> Tensor:
    """(examples, sites, tokens) from a function of the slope at a site that gives (examples, tokens).

    If the examples are beginnings of one text (the steps of an answer), one forward pass over the whole text
    serves them all, with one backward pass for each example.
    """
    if not request.shared:
        found = slopes(request)
        return stacked(request, lambda site: score(found[site]))
    leaf = {min(request.sites): lambda state: state.detach().requires_grad_()}
    last = max(request.subject.sites)
    with torch.enable_grad():
        output, states = request.subject.run(request.whole, replace=leaf, record=[*request.sites, last])
        request.note(request.by_step(output)[0])
        values = request.subject.task.score(request.by_step(output)[0], request.target)  # (examples,)
    each = []
    for gradients in walks_back(request, values, states[last], [states[site] for site in request.sites]):
        pairs = zip(request.sites, gradients, strict=True)
        each.append(torch.cat([score(Slope(states[s].detach(), _used(s, g))) for s, g in pairs]))
    return torch.stack(each)


def walks_back(
    request: Request, values: Tensor, last: Tensor, states: Sequence[Tensor]
) -> Iterator[tuple[Tensor | None, ...]]:
    """The gradients of each of the values (examples,) with respect to states of the whole text.

    The final norm and the head, which follow the last block, work on every token separately. So one backward
    pass to `last`, the output of that block, serves all values, and the large head is passed only once.
    """
    (found,) = torch.autograd.grad(values.sum(), last, retain_graph=True)  # (1, tokens, width)
    for i, end in enumerate(request.batch.marks["positions"][:, 0].tolist()):
        own = torch.zeros_like(found)
        own[:, end] = found[:, end]
        again = i < len(values) - 1
        yield torch.autograd.grad(last, states, own, retain_graph=again, allow_unused=True)


def _used(site: int, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        raise SiteError(f"the output does not depend on the state at site {site}; choose another site")
    return gradient


def path_gradient(
    request: Request,
    site: int,
    points: Callable[[Tensor, Tensor], Tensor],
    weights: Tensor,
    internal_batch_size: int | None = None,
    objective: Objective | None = None,
) -> Tensor:
    """The sum over steps k of weights[k] x the gradient at the k-th point: (examples, tokens, width).

    `points(rows, steps)` returns the states of the examples `rows` at the steps `steps` (equally many). The
    blocks below the site are not computed.
    """
    subject, batch = request.subject, request.batch
    objective, target = objective or subject.task.score, request.target
    if request.shared:
        return _shared_path(request, site, points, weights, objective)
    first = points(torch.tensor([0]), torch.tensor([0]))  # (1, tokens, width)
    total, weights = first.new_zeros(len(batch), *first.shape[1:]), weights.to(first)
    at_once = rows_at_once(batch, first.shape[-1], internal_batch_size)
    for rows, steps in pairs(len(batch), len(weights), at_once):
        # Nothing here may wait for a GPU: it is at work on one part while the next is prepared.
        own, which = moved(rows, first.device), moved(steps, first.device)
        leaf = points(own, which).detach().requires_grad_()
        with torch.enable_grad():
            # Scores that are not finite raise an error later; a check here would have to wait for the GPU.
            output = subject.run(batch.take(rows.tolist()), replace={site: leaf}, check=False).output
            value = objective(output, target[moved(rows, target.device)]).sum()
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
        total.index_add_(0, own, _used(site, gradient) * weights[which][:, None, None])
    return total


def _shared_path(
    request: Request,
    site: int,
    points: Callable[[Tensor, Tensor], Tensor],
    weights: Tensor,
    objective: Objective,
) -> Tensor:
    """`path_gradient` for beginnings of one text: a point of the whole text serves all its beginnings."""
    whole, last = torch.tensor([len(request.batch) - 1]), max(request.subject.sites)
    total: Tensor | None = None
    for k, weight in enumerate(weights.tolist()):
        leaf = points(whole, torch.tensor([k])).detach().requires_grad_()
        with torch.enable_grad():
            output, states = request.subject.run(request.whole, replace={site: leaf}, record=[last])
            values = objective(request.by_step(output)[0], request.target)
        found = walks_back(request, values, states[last], [leaf])
        gradient = torch.cat([_used(site, one) for (one,) in found]) * weight
        total = gradient if total is None else total + gradient
    assert total is not None
    return total


def reduced(gradient: Tensor, norm: str) -> Tensor:
    """One number per token from a gradient (..., width): "l2" or "l1" norm, or the signed "sum"."""
    check_choice("norm", norm, "l2", "l1", "sum")
    return gradient.sum(-1) if norm == "sum" else gradient.norm(p=int(norm[1]), dim=-1)


@register(
    "gradient",
    summary="Size of the score's gradient at each token's state",
    cost="2",
    paper="Simonyan et al. 2014",
    shares=True,
)
def gradient(request: Request, *, norm: str = "l2") -> Tensor:
    """The norm of dy/dh for each token; `norm` is "l2", "l1" or "sum" (signed)."""
    return sloped(request, lambda slope: reduced(slope.gradient, norm))


@register(
    "grad_x_input",
    summary="Gradient times state, summed over features",
    cost="2",
    paper="Shrikumar et al. 2016",
    shares=True,
)
def grad_x_input(request: Request) -> Tensor:
    """sum_k dy/dh_k h_k for each token: to first order, how far the score falls if the state is zero."""
    return sloped(request, lambda slope: (slope.gradient * slope.state).sum(-1))


@register(
    "gradcam",
    summary="Gradient times state, summed over features, negative evidence dropped",
    cost="2",
    paper="Selvaraju et al. 2017; Hou and Castanon 2023, equation 1",
    shares=True,
    sites="all",
)
def gradcam(request: Request) -> Tensor:
    """alpha = ReLU(sum_k dy/dh_k h_k) at each site. The gradients are not pooled over tokens."""
    return grad_x_input(request).relu()


@register(
    "smoothgrad",
    summary="Gradient averaged over noisy copies of the state",
    cost="2 n_samples",
    paper="Smilkov et al. 2017",
    quick={"n_samples": 2},
)
def smoothgrad(
    request: Request,
    *,
    n_samples: int = 10,
    noise: float = 0.01,
    norm: str = "l2",
    internal_batch_size: int | None = None,
) -> Tensor:
    """The norm of the mean gradient at h + e, e normal with std `noise` x (max - min of the text's h)."""
    check_count("n_samples", n_samples)
    return site_by_site(
        request,
        lambda part, site: reduced(smooth_gradient(part, site, n_samples, noise, internal_batch_size), norm),
    )


def smooth_gradient(
    request: Request,
    site: int,
    n_samples: int,
    noise: float,
    internal_batch_size: int | None = None,
    objective: Objective | None = None,
) -> Tensor:
    """The gradient averaged over `n_samples` noisy copies of the state: (examples, tokens, width)."""
    state = request.states()[site]
    spread = noise * _range(state, request.batch.valid)  # (examples, 1, 1)
    share = torch.tensor([1 / n_samples], dtype=torch.float32)
    total = torch.zeros_like(state)
    for _, sample in zip(track(range(n_samples), "samples"), request.draws(state.shape[-1]), strict=False):
        noisy = fixed(state + spread * sample.to(state))
        total += path_gradient(request, site, noisy, share, internal_batch_size, objective)
    return total


def fixed(states: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The same point at every step."""
    return lambda rows, _: states[rows]


def _range(state: Tensor, valid: Tensor) -> Tensor:
    """max - min of each example's valid states: (examples, 1, 1)."""
    pad = ~valid[:, :, None]
    top = state.masked_fill(pad, -torch.inf).amax((1, 2), keepdim=True)
    return top - state.masked_fill(pad, torch.inf).amin((1, 2), keepdim=True)


@register(
    "integrated_gradients",
    summary="Gradient integrated along the path from a baseline to the state",
    cost="2 n_steps",
    paper="Sundararajan et al. 2017",
    shares=True,
    quick={"n_steps": 4},
    baseline="zero",
)
def integrated_gradients(
    request: Request,
    *,
    n_steps: int = 50,
    points: str = "gausslegendre",
    absolute: bool = False,
    internal_batch_size: int | None = None,
) -> Tensor:
    """(h - b) . integral of dy/dh along the straight path from b to h.

    Each site is integrated separately. The baseline b is zero unless `baselines` says otherwise. The scores
    of a text add up to the target's score at h minus its score at b (completeness) if the steps suffice. Near
    a zero baseline gradients can be huge, above all at blocks; a sum that is far off is warned of.

    Args:
        n_steps: how many gradients approximate the integral.
        points: where the gradients are taken: "gausslegendre" (the default, the most accurate), "linspace"
            (0 to 1, both ends included, equal weights, as in the DiffMask paper's comparison), "trapezoid",
            or the "left", "middle" or "right" of equal steps.
        absolute: take the absolute value of each token's sum.
        internal_batch_size: rows that go through the model at once; by default as many as keep memory small.
    """
    check_count("n_steps", n_steps)
    steps, weights = quadrature(points, n_steps)

    def score(part: Request, site: int) -> Tensor:
        sums = integrated(part, site, steps, weights, internal_batch_size).sum(-1)
        if absolute:
            return sums.abs()
        expect_from(part, site, absent_state(part, site, part.states()[site])[:, None])
        _check_complete(part, site, sums)
        return sums

    return site_by_site(request, score)


def _check_complete(request: Request, site: int, scores: Tensor) -> None:
    """Warn if the integral has not converged: scores (examples, tokens) that do not add up. The message is
    the same for all texts, so Python shows it once."""
    sums = (scores * request.batch.valid).sum(1).tolist()
    theory = [request.expected[i][-1] for i in range(len(sums))]
    if any(abs(a - b) > GAP * (1 + abs(b)) for a, b in zip(sums, theory, strict=True)):
        warnings.warn(
            f"integrated_gradients at {site_name(site)}: scores of a text do not add up to its score minus "
            f"that of the baseline; the integral needs more n_steps, or another baseline (baselines=)",
            stacklevel=2,
        )


def integrated(
    request: Request,
    site: int,
    steps: Tensor,
    weights: Tensor,
    internal_batch_size: int | None = None,
    objective: Objective | None = None,
) -> Tensor:
    """(h - b) times the weighted sum of the gradients at b + steps[k] (h - b): (examples, tokens, width)."""
    state = request.states()[site]
    baseline = absent_state(request, site, state)
    way = state - baseline
    steps = steps.to(way)

    def point(rows: Tensor, which: Tensor) -> Tensor:
        return baseline[rows] + steps[which][:, None, None] * way[rows]

    return way * path_gradient(request, site, point, weights, internal_batch_size, objective)


def quadrature(points: str, n: int) -> tuple[Tensor, Tensor]:
    """n points between 0 and 1 and their weights: the weighted sum of a function's values is its integral."""
    equal = torch.full((n,), 1 / n, dtype=torch.float64)
    if points == "gausslegendre":
        import numpy as np

        places, weights = np.polynomial.legendre.leggauss(n)
        return torch.from_numpy((places + 1) / 2), torch.from_numpy(weights / 2)
    if points == "linspace":
        return torch.linspace(0, 1, n, dtype=torch.float64), equal
    if points == "trapezoid":
        ends = torch.ones(n, dtype=torch.float64)
        ends[[0, -1]] = 0.5
        return torch.linspace(0, 1, n, dtype=torch.float64), ends / ends.sum()
    shift = {"left": 0.0, "middle": 0.5, "right": 1.0}
    check_choice("points", points, "gausslegendre", "linspace", "trapezoid", *shift)
    return (torch.arange(n, dtype=torch.float64) + shift[points]) / n, equal
