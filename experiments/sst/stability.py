"""How alike the attributions of lenses are that differ by their seed only (DiffMask, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from masklens.attribution import Attribution
from masklens.bootstrap import RunningMean, interval, sample_weights
from masklens.evaluation.agreement import mean_pairwise


def stability(sets: Sequence[Sequence[Attribution]]) -> dict[str, Any]:
    """Spread and agreement of ranks of several lenses' attributions of the same texts.

    "deviation" is the standard deviation over lenses (n - 1) of a token's keep probability at a site,
    averaged over all tokens and sites; "rank_agreement" is Spearman's correlation of the tokens' numbers
    of layers (the sum over sites), averaged over pairs of lenses and over texts, special tokens left out.
    """
    spread = [np.std([a.scores for a in group], axis=0, ddof=1) for group in zip(*sets, strict=True)]
    tokens = np.concatenate(spread, axis=1)  # (sites, all tokens)
    agreement = known(mean_pairwise([[_layers(a) for a in one] for one in sets]))
    deepest = known(mean_pairwise(sets))
    return {
        "lenses": len(sets),
        "texts": len(spread),
        "deviation": float(tokens.mean()),
        "deviation_interval": list(_interval(spread)),
        "deviation_by_site": dict(zip(map(str, sets[0][0].sites), tokens.mean(1).tolist(), strict=True)),
        "rank_agreement": mean_or_none(agreement),
        "rank_agreement_interval": list(interval(agreement)) if len(agreement) else None,
        "rank_agreement_deepest": mean_or_none(deepest),
    }


def _interval(spread: Sequence[np.ndarray]) -> tuple[float, float]:
    """The 95% interval of the mean over sites and tokens, texts drawn with replacement."""
    mean = RunningMean()
    sums, sizes = (np.array([f(one) for one in spread], dtype=float) for f in (np.sum, np.size))
    mean.add(sums, sizes, sample_weights(0, 0, len(spread)))
    return mean.bounds()


def _layers(attribution: Attribution) -> Attribution:
    """The same record with one score per token: the number of layers that keep it, as the sum over sites."""
    total = attribution.scores.sum(0, keepdims=True)
    return replace(attribution, sites=attribution.sites[-1:], scores=total)


def known(values: np.ndarray) -> np.ndarray:
    """Without those that are not defined: texts whose tokens all have the same score."""
    return values[~np.isnan(values)]


def mean_or_none(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
