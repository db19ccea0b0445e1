"""The limits of a text's area scores: the values of its best and its worst order, found by search.

The area under a curve of removals depends on the model and the text as much as on the explanation. Scaled
between its limits it can be compared across models (NAOPC, Edin et al. 2024, arXiv:2408.08137).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .masking import Views
from .ranking import Ranking

Removed = Literal["top", "rest"]
"""which tokens a measure removes: the most important ones, or all others"""

WIDTH = 3
"""the width of the beam: how many sets of removed tokens are kept for the next step"""
EXACT = 5
"""for texts of at most so many tokens, all sets are tried"""


class Path(NamedTuple):
    """Tokens in the order of their removal, and the sum of the falls of p(target) after each removal."""

    total: float
    order: tuple[int, ...]


def find_limits(views: Views) -> dict[Removed, tuple[Ranking, Ranking]]:
    """The best and the worst order that a search finds for each text, by which tokens a measure removes.

    If the top tokens are removed, the best order makes p(target) fall most (`aopc_by_token` is largest), and
    the worst order least. If the rest is removed, the least important tokens are removed first. Then the
    best order makes p(target) fall least (`aopc_sufficiency_by_token` is smallest).
    """
    most, least = _searched(views, 1.0), _searched(views, -1.0)
    reverse = [Ranking.of(-order.scores, views.removable) for order in (least, most)]
    return {"top": (most, least), "rest": (reverse[0], reverse[1])}


def scaled(values: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Values on a scale where the smaller limit is 0 and the larger is 1; nan if the limits are the same."""
    low, span = np.minimum(one, other), np.abs(one - other)
    return np.divide(values - low, span, out=np.full(len(values), np.nan), where=span > 1e-9)


def _searched(views: Views, sign: float) -> Ranking:
    """Beam search over sets of removed tokens, one more token at each step, for all texts together."""
    tokens = [np.nonzero(row)[0].tolist() for row in views.removable]
    beams = [[Path(0.0, ())] for _ in tokens]
    for count in range(1, max(map(len, tokens), default=0) + 1):
        rows = [i for i, some in enumerate(tokens) if len(some) >= count]
        grown = [list(_grown(beams[i], tokens[i])) for i in rows]
        for i, paths in zip(rows, _measured(views, rows, grown, sign), strict=True):
            kept = len(paths) if len(tokens[i]) <= EXACT else WIDTH
            beams[i] = sorted(paths, key=lambda path: -path.total)[:kept]
    scores = np.zeros(views.removable.shape)
    for i, beam in enumerate(beams):
        scores[i, list(beam[0].order)] = -np.arange(len(beam[0].order))
    return Ranking.of(scores, views.removable)


def _grown(beam: Sequence[Path], tokens: Sequence[int]) -> Iterator[Path]:
    """Every path with one more token. Of paths that removed the same tokens, the one with the largest sum."""
    best: dict[frozenset[int], Path] = {}
    for path in beam:
        for token in tokens:
            removed = frozenset(path.order) | {token}
            if token not in path.order and (removed not in best or best[removed].total < path.total):
                best[removed] = Path(path.total, (*path.order, token))
    yield from best.values()


def _measured(
    views: Views, rows: Sequence[int], grown: Sequence[Sequence[Path]], sign: float
) -> Iterator[list[Path]]:
    """The paths of each text, with the fall after the last removal added. All paths are run together."""
    every = np.repeat(rows, [len(paths) for paths in grown])
    keep = views.removable[every].copy()
    for view, path in zip(keep, (path for paths in grown for path in paths), strict=True):
        view[list(path.order)] = False
    falls = iter(sign * (views.whole().probability[every] - views.read(every, keep).probability))
    for paths in grown:
        yield [Path(path.total + float(next(falls)), path.order) for path in paths]
