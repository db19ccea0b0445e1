"""Methods that remove tokens and measure the change of the score.

A removed token has the baseline in place of its state at the site. At site 0, with the mask token as the
baseline, this is the same as writing the mask token into the text. Special tokens are never removed and
score 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import MethodError
from ..model.batch import Batch
from ..progress import track
from .baselines import absent_state, expect_from, mask_or_zero
from .batching import masked_at, rows_at_once, site_by_site
from .gradient import fixed, path_gradient
from .registry import Request, check_count, register


class ValueFunction:
    """The score of texts at a site, as a function of the tokens that are kept.

    If tokens are removed in units, the first token of a unit stands for the whole unit.
    """

    def __init__(self, request: Request, site: int, internal_batch_size: int | None) -> None:
        self.request = request
        self.free = request.batch.valid & ~request.batch.special  # (examples, tokens)
        if request.heads is not None:
            self.free &= request.heads == torch.arange(request.heads.shape[1]).to(request.heads)
        baseline = absent_state(request, site, request.states()[site], mask_or_zero(request))
        self.masked = masked_at(request, site, baseline, internal_batch_size)

    def scores(self, rows: Tensor, keep: Tensor) -> Tensor:
        """The target's score for the texts `rows` with `keep` (rows, tokens) bool: (rows,)."""
        task, target, heads = self.request.subject.task, self.request.target, self.request.heads
        if heads is not None:
            keep = keep.gather(1, heads[rows])
        if self.request.shared:
            return self._shared_scores(rows, keep)
        return self.masked.read(rows, keep, lambda some, _, output: task.score(output, target[some]))

    def _shared_scores(self, rows: Tensor, keep: Tensor) -> Tensor:
        """`scores` for beginnings of one text: a view of the whole text serves all beginnings of it."""
        task, target = self.request.subject.task, self.request.target
        views, served = covering(self.request.batch.valid[rows].sum(1), keep)

        def answer(_some: Tensor, _batch: Batch, output: Tensor) -> Tensor:  # (views, examples)
            steps = self.request.by_step(output)  # (views, examples, 1, vocabulary)
            found = task.score(steps.flatten(0, 1), target.repeat(len(steps), 1, 1))
            return found.reshape(steps.shape[:2])

        of_whole = torch.zeros(len(views), dtype=torch.long, device=keep.device)
        return self.masked.read(of_whole, keep[views], answer)[served, rows]

    def of_samples(self, keep: Tensor) -> Tensor:
        """The scores (examples, samples) of samples of every text, keep (examples, samples, tokens)."""
        rows = torch.arange(len(keep), device=keep.device).repeat_interleave(keep.shape[1])
        return self.scores(rows, keep.flatten(0, 1)).reshape(keep.shape[:2])


def covering(lengths: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of keep (rows, tokens) that have to be run, and for each row which of these runs serves it.

    The row of a text with lengths (rows,) tokens needs no run of its own if a longer row begins with it.
    """
    bits, sizes = keep.cpu().numpy(), lengths.tolist()
    some = sorted(set(sizes))
    known: dict[tuple[int, bytes], int] = {}
    views: list[int] = []
    served = [0] * len(bits)
    for row in sorted(range(len(bits)), key=lambda i: -sizes[i]):
        own = (sizes[row], bits[row, : sizes[row]].tobytes())
        if own not in known:
            known |= {(n, bits[row, :n].tobytes()): len(views) for n in some if n <= sizes[row]}
            views.append(row)
        served[row] = known[own]
    return torch.tensor(views, device=keep.device), torch.tensor(served, device=keep.device)


def at_each_site(
    request: Request, internal_batch_size: int | None, score: Callable[[ValueFunction], Tensor]
) -> Tensor:
    """(examples, sites, tokens): what `score` gives for the value function at each site."""
    return site_by_site(request, lambda part, site: score(ValueFunction(part, site, internal_batch_size)))


@register(
    "occlusion",
    summary="How far the score falls when a window of tokens is taken away",
    cost="one per token",
    paper="Zeiler and Fergus 2014",
    shares=True,
    needs="forward passes",
    baseline="mask or zero",
)
def occlusion(request: Request, *, window: int = 1, internal_batch_size: int | None = None) -> Tensor:
    """The score minus the score without a window of tokens, averaged over the windows with the token.

    The window moves one token at a time. The baseline is the mask token, or zero where there is none, unless
    `baselines` says otherwise.
    """
    check_count("window", window)
    if window > 1 and request.heads is not None:
        raise MethodError(f"window={window} cannot be combined with units; leave window out")
    return at_each_site(request, internal_batch_size, lambda v: _occluded(v, window))


def _occluded(v: ValueFunction, window: int) -> Tensor:
    """Mean fall of the score over the windows of each token: (examples, tokens)."""
    inside = _windows(v.request.batch.valid, window)  # (examples, windows, tokens)
    taken = inside & v.free[:, None]
    rows, which = taken.any(2).nonzero().unbind(1)
    whole = v.request.subject.task.score(v.request.reference, v.request.target)
    falls = torch.zeros(taken.shape[:2], device=taken.device, dtype=torch.float32)
    falls[rows, which] = (whole[rows] - v.scores(rows, ~taken[rows, which])).to(falls)
    total = torch.einsum("ew,ewt->et", falls, inside.to(falls))
    return total / inside.sum(1).clamp(min=1) * v.free


def _windows(valid: Tensor, window: int) -> Tensor:
    """(examples, windows, tokens) bool: every window within a text; a shorter text is one window."""
    tokens = valid.shape[1]
    place = torch.arange(tokens, device=valid.device)
    start = place[:, None]
    inside = (place >= start) & (place < start + window)
    last = (valid.sum(1) - window).clamp(min=0)
    return inside & (start <= last[:, None, None]) & valid[:, None]


@register(
    "shapley",
    summary="Shapley values of the tokens, by sampling orders in which they are added",
    cost="n_samples per token",
    paper="Castro et al. 2009",
    shares=True,
    needs="forward passes",
    quick={"n_samples": 2},
    baseline="mask or zero",
)
def shapley(request: Request, *, n_samples: int = 25, internal_batch_size: int | None = None) -> Tensor:
    """The mean rise of the score when the token is added, over `n_samples` random orders.

    The scores add up to the score of the whole text minus the score with no token kept. The baseline is the
    mask token, or zero where there is none, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    return at_each_site(request, internal_batch_size, lambda v: _mean_rise(v, n_samples))


def _mean_rise(v: ValueFunction, n_samples: int) -> Tensor:
    """Mean over orders of what each free token adds: (examples, tokens)."""
    request, free = v.request, v.free
    orders = request.noise(n_samples, 1, torch.rand)[..., 0].masked_fill(~free[:, None], torch.inf)
    ends = v.of_samples(torch.stack([~free, torch.ones_like(free)], dim=1))  # (examples, 2)
    request.expect(ends[:, 0])
    total = torch.zeros(free.shape, device=free.device, dtype=torch.float32)
    for order in orders.unbind(1):  # one number per token; tokens are added in the order of their numbers
        total += _rises(v, order.argsort(1).argsort(1), ends)
    return total / n_samples


def _rises(v: ValueFunction, rank: Tensor, ends: Tensor) -> Tensor:
    """(examples, tokens): how much each token adds to the tokens before it. `rank` (examples, tokens) is the
    place of each free token in the order, from 0."""
    free = v.free
    count = free.sum(1)
    steps = torch.arange(free.shape[1] + 1, device=free.device)
    value = ends[:, 1:].repeat(1, len(steps))  # (examples, steps): the score with that many tokens added
    value[:, 0] = ends[:, 0]
    rows, step = ((steps > 0) & (steps < count[:, None])).nonzero().unbind(1)
    value[rows, step] = v.scores(rows, ~free[rows] | (rank[rows] < step[:, None])).to(value)
    return value.diff(dim=1).gather(1, rank) * free


@register(
    "lime",
    summary="A linear model of the score, fitted to texts with random tokens taken away",
    cost="n_samples",
    paper="Ribeiro et al. 2016",
    shares=True,
    needs="forward passes",
    quick={"n_samples": 10},
    baseline="mask or zero",
)
def lime(
    request: Request,
    *,
    n_samples: int = 25,
    drop: float = 0.3,
    penalty: float = 1.0,
    internal_batch_size: int | None = None,
) -> Tensor:
    """The coefficients of a ridge regression of the score on the kept tokens. Each sample is weighted by the
    share of tokens that it keeps.

    Args:
        n_samples: how many copies of the text, each with random tokens removed, are run.
        drop: the probability that a token is removed.
        penalty: the weight of the squared coefficients.

    The baseline is the mask token, or zero where there is none, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    if not 0 < drop < 1:
        raise MethodError(f"drop is {drop}; it must be between 0 and 1")
    return at_each_site(request, internal_batch_size, lambda v: _surrogate(v, n_samples, drop, penalty))


def _surrogate(v: ValueFunction, n_samples: int, drop: float, penalty: float) -> Tensor:
    """The linear model's coefficients (examples, tokens)."""
    kept = v.request.noise(n_samples, 1, torch.rand)[..., 0] >= drop  # (examples, samples, tokens)
    kept &= v.free[:, None]
    values = v.of_samples(kept | ~v.free[:, None])
    weights = kept.double().sum(2) / v.free.sum(1, keepdim=True).clamp(min=1)
    return ridge(kept.double(), values.double(), weights, penalty).float() * v.free


def ridge(features: Tensor, values: Tensor, weights: Tensor, penalty: float) -> Tensor:
    """Weighted ridge regression for each example, with an intercept that is not penalised.

    features (examples, samples, tokens), values and weights (examples, samples): (examples, tokens).
    """
    share = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    features = features - torch.einsum("es,est->et", share, features)[:, None]
    values = values - (share * values).sum(1, keepdim=True)
    weighted = weights[..., None] * features
    normal = weighted.mT @ features + penalty * torch.eye(features.shape[2]).to(features)
    return torch.linalg.solve(normal, weighted.mT @ values[..., None]).squeeze(-1)


@register(
    "gradient_shap",
    summary="Expected gradients between random baselines and the state",
    cost="2 n_samples",
    paper="Lundberg and Lee 2017",
    quick={"n_samples": 2},
    baseline="zero and pad",
)
def gradient_shap(request: Request, *, n_samples: int = 5, internal_batch_size: int | None = None) -> Tensor:
    """(h - b) . gradient at a random point between b and h, averaged over `n_samples`.

    b is drawn from the baselines: zero and the pad token, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    return site_by_site(
        request, lambda part, site: _expected_gradient(part, site, n_samples, internal_batch_size)
    )


def _expected_gradient(
    request: Request, site: int, n_samples: int, internal_batch_size: int | None
) -> Tensor:
    """The mean of (h - b) . gradient over samples of b and of the point between b and h."""
    state = request.states()[site]
    draws = torch.stack(
        [torch.rand(n_samples, 2, generator=g, dtype=torch.float32) for g in request.generators()]
    )
    baselines = _baselines(request, site, state)  # (examples, kinds, tokens, width)
    which = (draws[..., 0] * baselines.shape[1]).long().to(state.device)  # (examples, samples)
    place = draws[..., 1].to(state)
    total = torch.zeros(state.shape[:2], device=state.device, dtype=torch.float32)
    for k in track(range(n_samples), "samples"):
        baseline = baselines[torch.arange(len(state)), which[:, k]]
        way = state - baseline
        point = fixed(baseline + place[:, k, None, None] * way)
        total += (
            way * path_gradient(request, site, point, torch.ones(1, dtype=torch.float32), internal_batch_size)
        ).sum(-1)
    expect_from(request, site, baselines)
    return total / n_samples


@register(
    "deeplift_shap",
    summary="DeepLIFT against several baselines, averaged",
    cost="4 per baseline",
    paper="Shrikumar et al. 2017; Lundberg and Lee 2017",
    needs="gradients; captum",
    baseline="zero and pad",
)
def deeplift_shap(request: Request, *, internal_batch_size: int | None = None) -> Tensor:
    """captum's DeepLIFT of the state at the site, averaged over baselines, summed over features.

    captum applies DeepLIFT's rule to the nonlinearities it knows as modules (ReLU, Tanh, Softmax, ...) and
    takes the plain gradient through all others, such as GELU, LayerNorm and functional attention. For
    transformers the result is therefore close to gradient x (state - baseline), and the scores need not add
    up to the change of the score.

    The baselines are zero and the pad token, unless `baselines` says otherwise.
    """
    return site_by_site(request, lambda part, site: _mean_deeplift(part, site, internal_batch_size))


def _mean_deeplift(request: Request, site: int, internal_batch_size: int | None) -> Tensor:
    """DeepLIFT for each pair of a text and a baseline, averaged over baselines: (examples, tokens)."""
    state = request.states()[site]
    baselines = _baselines(request, site, state)
    kinds = baselines.shape[1]
    at_once = rows_at_once(request.batch, state.shape[-1], internal_batch_size) // (2 * kinds)
    found = []
    for rows in torch.arange(len(state), device=state.device).split(max(1, at_once)):
        values = _deeplift(
            request,
            site,
            state[rows].repeat_interleave(kinds, 0),
            baselines[rows].flatten(0, 1),
            rows.repeat_interleave(kinds),
        )
        found.append(values.reshape(len(rows), kinds, -1).mean(1))
    expect_from(request, site, baselines)
    return torch.cat(found)


def _deeplift(request: Request, site: int, states: Tensor, baselines: Tensor, rows: Tensor) -> Tensor:
    """captum's DeepLIFT of states (rows, tokens, width) of the texts `rows`: (rows, tokens)."""
    from captum.attr import DeepLift  # slow to import

    with _same_attributes(request.subject.module), warnings.catch_warnings():
        # captum warns about its hooks on each call
        warnings.simplefilter("ignore", UserWarning)
        values = DeepLift(StateReader(request, site)).attribute(
            states, baselines, additional_forward_args=(rows,)
        )
    return values.detach().sum(-1)


@contextmanager
def _same_attributes(module: nn.Module) -> Iterator[None]:
    """Afterwards, remove what captum's DeepLIFT leaves on activation modules: the last input and output."""
    before = {part: set(part.__dict__) for part in module.modules()}
    try:
        yield
    finally:
        for part, names in before.items():
            for name in set(part.__dict__) - names:
                delattr(part, name)


class StateReader(nn.Module):
    """The score of texts as a module that reads their states: (rows, tokens, width) to (rows, 1)."""

    def __init__(self, request: Request, site: int) -> None:
        super().__init__()
        self.model = request.subject.module
        self.request, self.site = request, site

    def forward(self, state: Tensor, rows: Tensor) -> Tensor:
        request = self.request
        # captum's hooks need gradients in every activation, also below the site
        edits: dict[int, Any] = {request.subject.sites[0]: lambda words: words.detach().requires_grad_()}
        edits[self.site] = state
        output = request.subject.run(request.batch.take(rows.tolist()), replace=edits).output
        return request.subject.task.score(output, request.target[rows])[:, None]


def _baselines(request: Request, site: int, state: Tensor) -> Tensor:
    """Two baselines per text in the shape of its state: (examples, 2, tokens, width)."""
    padded = (
        request.baselines is None and getattr(request.subject.tokenizer, "pad_token_id", None) is not None
    )
    kinds = ["zero", "pad" if padded else "zero"]
    return torch.stack([absent_state(request, site, state, kind) for kind in kinds], dim=1)
