"""Measures that several experiments share: bootstrap means over texts, and statistics of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from masklens.attribution import Text
from masklens.model.subject import Subject

DRAWS = 1000


def bootstrap_counts(texts: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """How often each text is drawn in each bootstrap sample: (1 + draws, texts). Row 0: each text once."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(texts, np.full(texts, 1 / texts), size=draws)
    return np.concatenate([np.ones((1, texts)), drawn])


def mean_under(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean in each sample of values, one per text: (samples,)."""
    return counts @ values.astype(float) / counts.sum(1)


def with_intervals(values: Mapping[str, np.ndarray]) -> dict[str, float | list[float]]:
    """Each measure (samples,) as its value in row 0 and, as NAME_interval, its 95% interval in the others."""
    found: dict[str, float | list[float]] = {}
    for name, column in values.items():
        found[name] = float(column[0])
        found[f"{name}_interval"] = np.quantile(column[1:], [0.025, 0.975]).tolist()
    return found


@torch.no_grad()
def corpus_statistics(subject: Subject, texts: Sequence[Text], size: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of each feature over the tokens of a corpus, by site.

    The reference code of Schulz et al. has one mean for each position, which works only for texts of the same
    length.
    """
    count, total, squares = 0, {}, {}  # type: int, dict[int, Tensor], dict[int, Tensor]
    order = sorted(texts, key=len)
    for start in range(0, len(order), size):
        batch = subject.encode(order[start : start + size])
        for site, state in subject.states(batch).states.items():
            seen = state[batch.valid].double()  # (tokens, width)
            total[site] = total.get(site, 0) + seen.sum(0)
            squares[site] = squares.get(site, 0) + seen.square().sum(0)
        count += int(batch.valid.sum())
    means = {site: value / count for site, value in total.items()}
    return {
        site: (mean.float(), (squares[site] / count - mean**2).clamp(min=0).sqrt().float())
        for site, mean in means.items()
    }
