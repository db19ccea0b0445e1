"""Explanations against a known truth, where the data were made so that there is one."""

from __future__ import annotations

import numpy as np


def kl(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """KL(truth || scores) of rows normalised to distributions, in nats: (rows,); may be inf."""
    p, q = distribution(truth), distribution(scores)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return terms.sum(-1)


def js(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence: the mean KL of both to their midpoint, in nats, at most ln 2."""
    p, q = distribution(truth), distribution(scores)
    return (kl(p, p + q) + kl(q, p + q)) / 2


def distribution(scores: np.ndarray) -> np.ndarray:
    """Rows of scores that are at least 0, divided by their sum."""
    scores = np.asarray(scores, dtype=np.float64)
    if (scores < 0).any():
        raise ValueError("scores below 0 are no distribution; take absolute values or clip them first")
    total = scores.sum(-1, keepdims=True)
    even = np.full_like(scores, 1 / scores.shape[-1])
    return np.divide(scores, total, out=even, where=total > 0)
