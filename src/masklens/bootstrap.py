"""95% bootstrap intervals over texts: how much a mean would vary over samples of texts of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

T = TypeVar("T")
SAMPLES = 1000
AT_ONCE = 256
"""texts in memory"""


def parts(items: Iterable[T]) -> Iterator[list[T]]:
    """The items, some at a time."""
    items = iter(items)
    while some := list(islice(items, AT_ONCE)):
        yield some


def bounds(found: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The 95% interval of the values that the bootstrap samples gave."""
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The interval of the mean of `values` (one per text); texts are drawn with replacement."""
    generator = np.random.default_rng(seed)
    return bounds([generator.choice(values, len(values)).mean() for _ in range(SAMPLES)])


class RunningMean:
    """A mean over texts that arrive in parts, with its interval by the Poisson bootstrap.

    In each bootstrap sample a text counts k times, where k is a Poisson number of mean 1. So only sums have
    to be kept in memory (Chamandy et al. 2012).
    """

    def __init__(self) -> None:
        self.total = self.count = 0.0
        self.totals, self.counts = np.zeros(SAMPLES), np.zeros(SAMPLES)

    def add(self, sums: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> None:
        """Add texts: the sum and the count of each text's values, (texts,), and its `sample_weights`."""
        self.total += sums.sum()
        self.count += counts.sum()
        self.totals += weights @ sums
        self.counts += weights @ counts

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else float("nan")

    def bounds(self) -> tuple[float, float]:
        there = self.counts > 0
        return bounds(self.totals[there] / self.counts[there])


def sample_weights(seed: int, number: int, texts: int) -> np.ndarray:
    """How often each text counts in each sample, (samples, texts); `number` is that of the part."""
    return np.random.default_rng([seed, number]).poisson(1.0, (SAMPLES, texts)).astype(float)
