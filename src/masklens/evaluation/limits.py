"""Between which values the area scores of a text can lie: its best and its worst order, by search.

The area under a curve of removals depends on the model and the text as much as on the explanation. Between
the values of the best and the worst order it compares across models (NAOPC, Edin et al. 2024, 2408.08137).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .masking import Views
from .ranking import Ranking

Removed = Literal["top", "rest"]
"""what a score removes: the most important tokens, or all the others"""

WIDTH = 3
"""sets of removed tokens that the search follows at a time"""
EXACT = 5
"""a text of at most so many tokens is searched through: every set is followed"""


class Path(NamedTuple):
    """Tokens in the order of their removal, and the sum of the falls of p(target) on the way."""

    total: float
    order: tuple[int, ...]


def find_limits(views: Views) -> dict[Removed, tuple[Ranking, Ranking]]:
    """The best and the worst order that a search finds for each text, by what a score removes.

    Where the top tokens go, p(target) falls most in the best order (`aopc_by_token` is largest), and least in
    the worst. Where the rest goes, the least important tokens go first, so that it is the other way round:
    the best order ends with those whose removal matters least (`aopc_sufficiency_by_token` is smallest).
    """
    most, least = _searched(views, 1.0), _searched(views, -1.0)
    reverse = [Ranking.of(-order.scores, views.removable) for order in (least, most)]
    return {"top": (most, least), "rest": (reverse[0], reverse[1])}


def scaled(values: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Values with the smaller of two limits as 0 and the larger as 1; nan where the limits are the same."""
    low, span = np.minimum(one, other), np.abs(one - other)
    return np.divide(values - low, span, out=np.full(len(values), np.nan), where=span > 1e-9)


def _searched(views: Views, sign: float) -> Ranking:
    """Beam search over what is removed, one token more at a time, all texts at once."""
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
    """Every path with one token more; of those that removed the same tokens only the one with most so far."""
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
    """The paths of each text with the fall after their last token added, all of them read at once."""
    every = np.repeat(rows, [len(paths) for paths in grown])
    keep = views.removable[every].copy()
    for view, path in zip(keep, (path for paths in grown for path in paths), strict=True):
        view[list(path.order)] = False
    falls = iter(sign * (views.whole().probability[every] - views.read(every, keep).probability))
    for paths in grown:
        yield [Path(path.total + float(next(falls)), path.order) for path in paths]
