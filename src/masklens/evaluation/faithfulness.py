"""Is an explanation faithful to the model? Measures of how the output changes when tokens are removed.

Every function returns one value per text, so that a table can show means with intervals. `views` runs the
texts with some tokens removed (see masking.py). `ranking` is the explanation's order of the tokens (see
ranking.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import MethodError
from .agreement import kendall_tau
from .limits import scaled
from .masking import Views
from .ranking import Ranking

STEPS = tuple(round(0.1 * i, 1) for i in range(11))
"""the shares of tokens at which the games look: 0, 10, ..., 100%"""
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""the shares of tokens that ERASER averages over"""

Order = Literal["most_important_first", "least_important_first"]


@dataclass(frozen=True, eq=False)
class Game:
    """How often the model was right as tokens were hidden or revealed."""

    shares: tuple[float, ...]
    """the shares of tokens that were hidden or revealed, one for each step"""
    hits: np.ndarray
    """(texts, shares), 1 where the model was right"""
    limits: tuple[np.ndarray, np.ndarray] | None = None
    """the areas (texts,) of each text's best and worst order, for normalised areas"""

    @property
    def curve(self) -> np.ndarray:
        """(shares,) accuracy"""
        return self.hits.mean(0)

    @property
    def areas(self) -> np.ndarray:
        """(texts,): the area under each text's curve, by trapezoids; with limits, scaled between them."""
        widths = np.diff(self.shares)
        areas = ((self.hits[:, 1:] + self.hits[:, :-1]) / 2 * widths).sum(1)
        return areas if self.limits is None else scaled(areas, *self.limits)

    @property
    def auc(self) -> float:
        return float(self.areas.mean())


def revealing(views: Views, ranking: Ranking, order: Order = "most_important_first") -> Game:
    """Start with all tokens hidden and reveal them step by step (Hou & Castanon 2023, section 3.1).

    With the most important first, a higher area is better.
    """
    return Game(STEPS, views.read_steps(_steps(ranking, order)).correct)


def hiding(views: Views, ranking: Ranking, order: Order = "most_important_first") -> Game:
    """Start with all tokens visible and hide them step by step (Hou & Castanon 2023, appendix A.1).

    With the most important first, a lower area is better; with the least important first (as section 3.1
    of the paper says), a higher one.
    """
    return Game(STEPS, views.read_steps(~_steps(ranking, order)).correct)


def _steps(ranking: Ranking, order: str) -> np.ndarray:
    """(texts, STEPS, tokens) bool: at each step, the share of tokens that comes first in the order."""
    parts = {"most_important_first": ranking.top, "least_important_first": ranking.bottom}
    if order not in parts:
        raise MethodError(f"no order {order!r}; there are {', '.join(parts)}")
    return np.stack([parts[order](share) for share in STEPS], axis=1)


def comprehensiveness(views: Views, ranking: Ranking, share: float = 0.2) -> np.ndarray:
    """p(target | text) - p(target | text without its top tokens); higher is better (DeYoung et al. 2020)."""
    return aopc_comprehensiveness(views, ranking, [share])


def sufficiency(views: Views, ranking: Ranking, share: float = 0.2) -> np.ndarray:
    """p(target | text) - p(target | its top tokens alone); lower is better (DeYoung et al. 2020)."""
    return aopc_sufficiency(views, ranking, [share])


def aopc_comprehensiveness(views: Views, ranking: Ranking, shares: Sequence[float] = BINS) -> np.ndarray:
    """Comprehensiveness averaged over shares of tokens (area over the perturbation curve)."""
    return _fall(views, ~_tops(ranking, shares)).mean(1)


def aopc_sufficiency(views: Views, ranking: Ranking, shares: Sequence[float] = BINS) -> np.ndarray:
    """Sufficiency averaged over shares of tokens."""
    return _fall(views, _tops(ranking, shares)).mean(1)


def aopc_by_token(views: Views, ranking: Ranking) -> np.ndarray:
    """Comprehensiveness averaged over the top 1, 2, ..., all tokens; higher is better."""
    tops, counted = _every_count(ranking)
    return _mean(_fall(views, ~tops), counted)


def aopc_sufficiency_by_token(views: Views, ranking: Ranking) -> np.ndarray:
    """Sufficiency averaged over the top 1, 2, ..., all tokens; lower is better."""
    tops, counted = _every_count(ranking)
    return _mean(_fall(views, tops), counted)


def ferret_comprehensiveness(views: Views, ranking: Ranking) -> np.ndarray:
    """Comprehensiveness averaged as ferret does (Attanasio et al. 2023); higher is better.

    The shares are 10, 20, ..., 100% of the tokens, rounded down. Of these, only tokens with a score above 0
    are removed. A share that removes none, or the same tokens as the share before, does not count. The value
    is 0 if no share counts.
    """
    tops, counted = _positive_tenths(ranking)
    return np.nan_to_num(_mean(_fall(views, ~tops), counted), nan=0.0)


def ferret_sufficiency(views: Views, ranking: Ranking) -> np.ndarray:
    """Sufficiency averaged like `ferret_comprehensiveness`; lower is better. It is 1 if no share counts."""
    tops, counted = _positive_tenths(ranking)
    return np.nan_to_num(_mean(_fall(views, tops), counted), nan=1.0)


def _tops(ranking: Ranking, shares: Sequence[float]) -> np.ndarray:
    """(texts, shares, tokens) bool: the top tokens."""
    return np.stack([ranking.top(share) for share in shares], axis=1)


def _every_count(ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """The top 1, 2, ... tokens (texts, counts, tokens), and which counts a text has (texts, counts)."""
    counts = range(1, int(ranking.counts.max(initial=1)) + 1)
    tops = np.stack([ranking.first(count) for count in counts], axis=1)
    return tops, np.array(counts) <= ranking.counts[:, None]


def _positive_tenths(ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """ferret's top tokens (texts, shares, tokens), and which shares count (texts, shares)."""
    counts = [np.floor(share * ranking.counts) for share in np.arange(0.1, 1.1, 0.1)]
    tops = np.stack([ranking.first(count) & (ranking.scores > 0) for count in counts], axis=1)
    before = np.zeros_like(tops)  # the tokens of the share before; nothing for the first
    before[:, 1:] = tops[:, :-1]
    return tops, np.any(tops != before, axis=-1)


def _fall(views: Views, keep: np.ndarray) -> np.ndarray:
    """(texts, steps): p(target) for the whole text minus p(target) with the kept tokens alone."""
    return views.whole().probability[:, None] - views.read_steps(keep).probability


def log_odds(views: Views, ranking: Ranking, share: float = 0.2) -> np.ndarray:
    """log p(target | text without its top tokens) - log p(target | text); lower is better.

    Shrikumar et al. 2017, Chen et al. 2019.
    """
    readings = views.read_steps(~ranking.top(share)[:, None])
    return readings.log_probability[:, 0] - views.whole().log_probability


def divergence(views: Views, ranking: Ranking, share: float = 0.5) -> np.ndarray:
    """How far the output moves when only the top tokens are left, in nats; lower is better."""
    return views.read_steps(ranking.top(share)[:, None]).divergence[:, 0]


def loo_correlation(views: Views, ranking: Ranking) -> np.ndarray:
    """Kendall's tau between the scores and the effect on p(target) of leaving out each token alone.

    Undefined (nan) for a text whose scores are all the same.
    """
    effect = leave_one_out(views)
    pairs = zip(effect, ranking.scores, ranking.removable, strict=True)
    return np.array([kendall_tau(e[where], s[where]) for e, s, where in pairs])


def leave_one_out(views: Views) -> np.ndarray:
    """(texts, tokens): p(target | text) - p(target | text without that token), 0 for special tokens."""
    rows, tokens = np.nonzero(views.removable)
    keep = views.removable[rows].copy()
    keep[np.arange(len(rows)), tokens] = False
    effect = np.zeros(views.removable.shape)
    if len(rows):
        effect[rows, tokens] = views.whole().probability[rows] - views.read(rows, keep).probability
    return effect


def _mean(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The mean over the last axis of the values where `where` is true; nan if it is never true."""
    total = np.where(where, values, 0.0).sum(-1)
    count = where.sum(-1)
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
