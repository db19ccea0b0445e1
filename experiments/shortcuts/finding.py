"""How well scores find the planted tokens of a text (Bastings et al. 2022, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from masklens.attribution import Attribution
from masklens.bootstrap import interval


def precision(scores: np.ndarray, planted: np.ndarray) -> float:
    """The share of planted tokens among the top k, for k planted tokens.

    scores and planted are (tokens,). Where scores tie across the cut, this is the mean over all orders.
    """
    k = int(planted.sum())
    cut = np.sort(scores)[-k]
    above, tied = scores > cut, scores == cut
    places = k - above.sum()
    return float(((planted & above).sum() + places * (planted & tied).sum() / tied.sum()) / k)


def depth(scores: np.ndarray, planted: np.ndarray) -> float:
    """How many tokens have to be looked at, from the top, until all planted ones were seen; k at best.

    Tokens that tie with the last planted one come before it half of the time.
    """
    last = scores[planted].min()
    tied = scores == last
    return float((scores > last).sum() + (tied.sum() + (planted & tied).sum()) / 2)


def planted_tokens(attribution: Attribution, words: Sequence[str]) -> np.ndarray:
    """(tokens,) bool; every planted word has to be one token."""
    found = np.array([token in words for token in attribution.tokens])
    if found.sum() != len(words):
        raise ValueError(f"{words} are not one token each in {attribution.text!r}")
    return found


def measured(found: Sequence[Attribution], words: Sequence[Sequence[str]], site: int) -> dict[str, Any]:
    """Precision, with its interval over texts, and depth of the scores at a site, without special tokens."""
    pairs = []
    for attribution, some in zip(found, words, strict=True):
        ranked = ~np.array(attribution.special)
        pairs.append((attribution.at(site)[ranked], planted_tokens(attribution, some)[ranked]))
    precisions = np.array([precision(*pair) for pair in pairs])
    return {
        "site": site,
        "texts": len(pairs),
        "precision": float(precisions.mean()),
        "precision_interval": list(interval(precisions)),
        "depth": float(np.mean([depth(*pair) for pair in pairs])),
    }
