"""How alike two explanations of the same text are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError


def kendall_tau(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's tau-b: the surplus of pairs in the same order, corrected for ties; nan if one is constant."""
    upper = np.triu_indices(len(x), 1)
    dx = np.sign(np.subtract.outer(x, x))[upper]
    dy = np.sign(np.subtract.outer(y, y))[upper]
    scale = np.sqrt(float((dx != 0).sum()) * float((dy != 0).sum()))
    return float((dx * dy).sum() / scale) if scale else float("nan")


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of the ranks, ties sharing their mean rank; nan if one is constant."""
    a, b = mid_ranks(x), mid_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def mid_ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return (last - (counts - 1) / 2)[inverse]


def rank_agreement(first: Sequence[Attribution], second: Sequence[Attribution]) -> np.ndarray:
    """Spearman's correlation of two sets of attributions, text by text, at the deepest site: (texts,).

    Special tokens are left out: they would be ranked alike by most methods.
    """
    if len(first) != len(second):
        raise MethodError(
            f"{len(first)} and {len(second)} attributions cannot be compared; give the same texts"
        )
    return np.array([spearman(*_comparable(a, b)) for a, b in zip(first, second, strict=True)])


def mean_pairwise(sets: Sequence[Sequence[Attribution]]) -> np.ndarray:
    """The mean rank agreement over all pairs of sets, text by text: (texts,)."""
    return np.mean([rank_agreement(a, b) for a, b in combinations(sets, 2)], axis=0)


def _comparable(a: Attribution, b: Attribution) -> tuple[np.ndarray, np.ndarray]:
    if a.tokens != b.tokens:
        raise MethodError(
            f"attributions over different tokens cannot be compared: {a.tokens[:5]} and {b.tokens[:5]}"
        )
    text = ~np.array(a.special)
    return a.scores[-1][text], b.scores[-1][text]
