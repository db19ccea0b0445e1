"""Methods that take tokens away and watch the score; the sampling ones are captum's, adapted once.

Everything is a function of `keep`: a token that is not kept has the baseline in place of its state at the
site. At site 0 with the mask token as the baseline that is the same as writing the mask token into the text.
Special tokens are never taken away and score 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import MethodError
from . import Request, register
from .baselines import absent_state, mask_or_zero
from .batching import by_length, even, one_by_one, rows_at_once
from .gradient import check_count


class Game:
    """The score of one or more texts at a site, as a function of the tokens that are kept."""

    def __init__(self, request: Request, site: int, internal_batch_size: int | None) -> None:
        output, states = request.subject.states(request.batch, [site])
        request.note(output)
        self.request, self.site, self.state = request, site, states[site]
        self.baseline = absent_state(request, site, self.state, mask_or_zero(request))
        self.free = request.batch.valid & ~request.batch.special  # (examples, tokens)
        self.rows_at_once = rows_at_once(request.batch, self.state.shape[-1], internal_batch_size)

    @torch.no_grad()
    def scores(self, rows: Tensor, keep: Tensor) -> Tensor:
        """The target's score for the texts `rows` with `keep` (rows, tokens) bool: (rows,)."""
        request, found = self.request, []
        size = even(len(rows), self.rows_at_once)
        for some, kept in zip(rows.split(size), keep.split(size), strict=True):
            edited = torch.where(kept[:, :, None], self.state[some], self.baseline[some])
            output = request.subject.run(
                request.batch.take(some.tolist()), replace={self.site: edited}
            ).output
            found.append(request.subject.task.score(output, request.target[some]))
        return torch.cat(found)

    def of_one_text(self, features: Tensor) -> Tensor:
        """The same for the only text, from its free tokens: (rows, free tokens), 1 for kept, to (rows,)."""
        keep = (~self.free).repeat(len(features), 1)
        keep[:, self.free[0]] = features > 0.5
        return self.scores(torch.zeros(len(features), dtype=torch.long, device=keep.device), keep)

    def spread(self, values: Tensor) -> Tensor:
        """Scores of the free tokens of the only text as (1, tokens)."""
        out = torch.zeros(self.free.shape, device=self.free.device)
        out[self.free] = values.reshape(-1).to(out)
        return out


@register(
    "occlusion",
    summary="How far the score falls when a window of tokens is taken away",
    cost="one a token",
    paper="Zeiler and Fergus 2014",
    needs="forward passes",
)
def occlusion(request: Request, *, window: int = 1, internal_batch_size: int | None = None) -> Tensor:
    """Score minus the score without the window, averaged over the windows that hold the token.

    The window moves one token at a time. The baseline is the mask token, or zero where there is none, unless
    `baselines` says otherwise.
    """
    check_count("window", window)

    def score(part: Request) -> Tensor:
        games = [Game(part, site, internal_batch_size) for site in part.sites]
        return torch.stack([_occluded(game, window) for game in games], dim=1)

    return by_length(request, score)


def _occluded(game: Game, window: int) -> Tensor:
    """Mean fall of the score over the windows of each token: (examples, tokens)."""
    inside = _windows(game.request.batch.valid, window)  # (examples, windows, tokens)
    taken = inside & game.free[:, None]
    rows, which = taken.any(2).nonzero().unbind(1)
    whole = game.request.subject.task.score(game.request.reference, game.request.target)
    falls = torch.zeros(taken.shape[:2], device=taken.device)
    falls[rows, which] = (whole[rows] - game.scores(rows, ~taken[rows, which])).to(falls)
    total = torch.einsum("ew,ewt->et", falls, inside.to(falls))
    return total / inside.sum(1).clamp(min=1) * game.free


def _windows(valid: Tensor, window: int) -> Tensor:
    """Every window that lies within a text (all of a shorter text): (examples, windows, tokens) bool."""
    tokens = valid.shape[1]
    start, place = (
        torch.arange(tokens, device=valid.device)[:, None],
        torch.arange(tokens, device=valid.device),
    )
    inside = (place >= start) & (place < start + window)
    last = (valid.sum(1) - window).clamp(min=0)
    return inside & (start <= last[:, None, None]) & valid[:, None]


def captum_attr(method: str) -> ModuleType:
    """captum.attr, or an error that says what to install."""
    try:
        import captum.attr
    except ImportError as error:
        raise MethodError(f"{method} needs captum, which is not installed: pip install captum") from error
    return captum.attr


@contextmanager
def seeded(request: Request) -> Iterator[None]:
    """captum draws from the global generators: seed them from the seed and the text, and put them back."""
    import numpy as np

    seed = zlib.crc32(f"{request.seed}\0{request.batch.tokens}".encode())
    before = np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


def _text_by_text(request: Request, explain: Callable[[Request, int], Tensor]) -> Tensor:
    """Run a captum method on each text and site alone: `explain` gives (1, tokens)."""

    def score(part: Request) -> Tensor:
        with seeded(part):
            return torch.stack([explain(part, site) for site in part.sites], dim=1)

    return one_by_one(request, score)


@register(
    "shapley",
    summary="Shapley values of the tokens, by sampling orders in which they are added",
    cost="n_samples a token",
    paper="Castro et al. 2009",
    needs="forward passes; captum",
    quick={"n_samples": 2},
)
def shapley(request: Request, *, n_samples: int = 25, internal_batch_size: int | None = None) -> Tensor:
    """The mean rise of the score when the token is added, over `n_samples` random orders.

    The scores add up to the score of the whole text minus that with no token kept. The baseline is the mask
    token, or zero where there is none, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    attr = captum_attr("shapley")

    def explain(part: Request, site: int) -> Tensor:
        game = Game(part, site, internal_batch_size)
        count = int(game.free.sum())
        if count == 0:
            return game.spread(torch.zeros(0))
        ones = torch.ones(1, count, device=game.free.device)
        values = attr.ShapleyValueSampling(game.of_one_text).attribute(
            ones, n_samples=n_samples, perturbations_per_eval=game.rows_at_once
        )
        return game.spread(values)

    return _text_by_text(request, explain)


@register(
    "lime",
    summary="A linear model of the score, fitted to texts with random tokens taken away",
    cost="n_samples",
    paper="Ribeiro et al. 2016",
    needs="forward passes; captum",
    quick={"n_samples": 10},
)
def lime(
    request: Request,
    *,
    n_samples: int = 25,
    drop: float = 0.3,
    penalty: float = 1.0,
    internal_batch_size: int | None = None,
) -> Tensor:
    """Coefficients of a ridge regression of the score on the kept tokens, each sample weighted by the share
    of tokens it keeps.

    Args:
        n_samples, drop: how many texts to try, and the probability of a token being taken away in each.
        penalty: of the squared coefficients.

    The baseline is the mask token, or zero where there is none, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    if not 0 < drop < 1:
        raise MethodError(f"drop is {drop}; it must be between 0 and 1")
    attr = captum_attr("lime")

    def explain(part: Request, site: int) -> Tensor:
        game = Game(part, site, internal_batch_size)
        count = int(game.free.sum())
        if count == 0:
            return game.spread(torch.zeros(0))
        surrogate = attr.LimeBase(
            game.of_one_text,
            Ridge(penalty),
            similarity_func=lambda whole, perturbed, sample, **_: sample.mean(),
            perturb_func=lambda whole, **_: (torch.rand(1, count) >= drop).to(whole),
            perturb_interpretable_space=True,
            from_interp_rep_transform=lambda sample, whole, **_: sample,
            to_interp_rep_transform=None,
        )
        ones = torch.ones(1, count, device=game.free.device)
        return game.spread(
            surrogate.attribute(ones, n_samples=n_samples, perturbations_per_eval=game.rows_at_once)
        )

    return _text_by_text(request, explain)


class Ridge:
    """Weighted ridge regression with an intercept, in the form that captum's LIME takes."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty
        self.coefficients: Tensor | None = None

    def fit(self, train_data: Any, **_: Any) -> dict[str, Any]:
        """Take batches of (features, values, weights); the intercept is not penalised."""
        features, values, weights = (torch.cat(parts).double() for parts in zip(*train_data, strict=True))
        values, weights = values.reshape(-1, 1), weights.reshape(-1, 1)
        features = features - (weights * features).sum(0) / weights.sum()
        values = values - (weights * values).sum(0) / weights.sum()
        normal = features.T @ (weights * features) + self.penalty * torch.eye(features.shape[1]).to(features)
        self.coefficients = torch.linalg.solve(normal, features.T @ (weights * values)).T
        return {}

    def representation(self) -> Tensor:
        """The coefficients: (1, features)."""
        assert self.coefficients is not None
        return self.coefficients


@register(
    "gradient_shap",
    summary="Expected gradients between random baselines and the state",
    cost="2 n_samples",
    paper="Lundberg and Lee 2017",
    needs="gradients; captum",
    quick={"n_samples": 2},
)
def gradient_shap(request: Request, *, n_samples: int = 5, noise: float = 0.0) -> Tensor:
    """(h - b) . gradient at a random point between b and h + noise, averaged over `n_samples`.

    b is drawn from the baselines: zero and the pad token, unless `baselines` says otherwise.
    """
    check_count("n_samples", n_samples)
    attr = captum_attr("gradient_shap")

    def explain(part: Request, site: int) -> Tensor:
        state, baselines = _state_and_baselines(part, site)
        values = attr.GradientShap(StateReader(part, site)).attribute(
            state, baselines, n_samples=n_samples, stdevs=noise
        )
        return values.detach().sum(-1)

    return _text_by_text(request, explain)


@register(
    "deeplift_shap",
    summary="DeepLIFT against several baselines, averaged",
    cost="4 a baseline",
    paper="Shrikumar et al. 2017; Lundberg and Lee 2017",
    needs="gradients; captum",
)
def deeplift_shap(request: Request) -> Tensor:
    """captum's DeepLiftShap of the state at the site, summed over features.

    captum applies DeepLIFT's rule to the nonlinearities it knows as modules (ReLU, Tanh, Softmax, ...) and
    takes the plain gradient through all others, such as GELU, LayerNorm and functional attention. For
    transformers the result is therefore close to gradient x (state - baseline), and the scores need not add
    up to the change of the score.

    The baselines are zero and the pad token, unless `baselines` says otherwise.
    """
    attr = captum_attr("deeplift_shap")

    def explain(part: Request, site: int) -> Tensor:
        import warnings

        state, baselines = _state_and_baselines(part, site)
        with _same_attributes(part.subject.module), warnings.catch_warnings():
            # captum announces its hooks on each call
            warnings.simplefilter("ignore", UserWarning)
            values = attr.DeepLiftShap(StateReader(part, site)).attribute(state, baselines)
        return values.detach().sum(-1)

    return _text_by_text(request, explain)


@contextmanager
def _same_attributes(module: nn.Module) -> Iterator[None]:
    """Take away what captum's DeepLIFT leaves on activation modules: the last input and output."""
    before = {part: set(part.__dict__) for part in module.modules()}
    try:
        yield
    finally:
        for part, names in before.items():
            for name in set(part.__dict__) - names:
                delattr(part, name)


class StateReader(nn.Module):
    """The score of one text as a module that reads a state: (rows, tokens, width) to (rows, 1)."""

    def __init__(self, request: Request, site: int) -> None:
        super().__init__()
        self.model = request.subject.module
        self.request, self.site = request, site

    def forward(self, state: Tensor) -> Tensor:
        request, rows = self.request, [0] * len(state)
        output = request.subject.run(request.batch.take(rows), replace={self.site: state}).output
        return request.subject.task.score(output, request.target[rows])[:, None]


def _state_and_baselines(request: Request, site: int) -> tuple[Tensor, Tensor]:
    """The state (1, tokens, width) of one text and at least two baselines of that width."""
    output, states = request.subject.states(request.batch, [site])
    request.note(output)
    state = states[site]
    kinds = ["zero", "zero"]
    if request.baselines is None and getattr(request.subject.tokenizer, "pad_token_id", None) is not None:
        kinds = ["zero", "pad"]
    return state, torch.cat([absent_state(request, site, state, kind) for kind in kinds])
