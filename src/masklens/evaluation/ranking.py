"""Turn attributions into an order of the tokens that can be hidden."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError
from ..model.batch import Batch
from ..words import best_shared
from .masking import Views


@dataclass(frozen=True, eq=False)
class Ranking:
    """The tokens of each text from most to least important; ties go to the earlier token."""

    scores: np.ndarray
    """(texts, tokens)"""
    removable: np.ndarray
    """(texts, tokens) bool: the tokens that are ranked"""
    place: np.ndarray
    """(texts, tokens) int: 0 for the most important token"""

    @classmethod
    def of(cls, scores: np.ndarray, removable: np.ndarray) -> Ranking:
        order = np.argsort(np.where(removable, -scores, np.inf), axis=1, kind="stable")
        return cls(scores, removable, order.argsort(1))

    @property
    def counts(self) -> np.ndarray:
        """(texts,) ranked tokens."""
        return self.removable.sum(1)

    def top(self, share: float) -> np.ndarray:
        """(texts, tokens) bool: the most important tokens, a share of the ranked ones, rounded."""
        return self.removable & (self.place < np.rint(share * self.counts)[:, None])

    def bottom(self, share: float) -> np.ndarray:
        """(texts, tokens) bool: the least important tokens."""
        return self.removable & (self.place >= (self.counts - np.rint(share * self.counts))[:, None])

    def first(self, count: int | np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(texts, tokens) bool: the `count` most important tokens of each text, or all if it has fewer.

        The count may be a number for each text. `rows` selects some of the texts.
        """
        return self.removable[rows] & (self.place[rows] < np.reshape(count, (-1, 1)))

    def reversed(self) -> Ranking:
        """The least important token first."""
        place = np.where(self.removable, self.counts[:, None] - 1 - self.place, self.place)
        return Ranking(-self.scores, self.removable, place)

    def untied(self, count: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(texts,): `count`, enlarged so that the tokens with the same score as the last one are counted too:
        among equal scores no token is more important."""
        count, scores = np.asarray(count), np.where(self.removable, self.scores, -np.inf)[rows]
        last = np.take_along_axis(-np.sort(-scores, axis=1), np.maximum(0, count - 1)[:, None], axis=1)
        return np.where(count > 0, (scores >= last).sum(1), 0)


def without_order_in_ties(ranking: Ranking, chance: Ranking) -> Ranking:
    """The same ranking, but tokens with equal scores are in the order of `chance`, not of the text."""
    order = np.lexsort((chance.place, np.where(ranking.removable, -ranking.scores, np.inf)), axis=1)
    return Ranking(ranking.scores, ranking.removable, order.argsort(1))


def rank(views: Views, attributions: Sequence[Attribution], site: int | None = None) -> Ranking:
    """The ranking of tokens by the scores at a site, by default the deepest."""
    return Ranking.of(score_matrix(views.batch, attributions, site), views.removable)


def random_rankings(views: Views, draws: int, seed: int = 0) -> list[Ranking]:
    """Random orders. The orders of a text do not depend on the other texts."""
    scores = np.zeros((draws, *views.removable.shape))
    for i, tokens in enumerate(views.batch.tokens):
        generator = np.random.default_rng([seed, zlib.crc32(repr(tokens).encode())])
        count = min(len(tokens), scores.shape[2])  # tokens may be removed in larger units
        scores[:, i, :count] = generator.random((draws, count))
    return [Ranking.of(one, views.removable) for one in scores]


def own_scores(attribution: Attribution, site: int) -> np.ndarray:
    """The scores of the text's own tokens at a site, without special tokens such as [CLS]."""
    return attribution.at(site)[~np.array(attribution.special, dtype=bool)]


def is_flat(scores: np.ndarray) -> bool:
    """Whether all scores are equal, so that they rank nothing."""
    return bool(np.ptp(scores) <= 1e-9 * max(1.0, float(np.abs(scores).max()))) if len(scores) else True


def ranking_site(attributions: Sequence[Attribution]) -> int:
    """The deepest site at which the scores rank the words of at least one text.

    After the last block of a classifier, often [CLS] alone has a score. For keep probabilities, which may
    all be equal, and if there is no such site, it is the deepest site of all.
    """
    first = attributions[0]
    for site in reversed(first.sites):
        if first.merge == "max" or not all(is_flat(own_scores(a, site)) for a in attributions):
            return site
    return first.sites[-1]


def score_matrix(batch: Batch, attributions: Sequence[Attribution], site: int | None = None) -> np.ndarray:
    """Scores (texts, tokens) over the model's own tokens, 0 at padding."""
    if len(attributions) != len(batch):
        raise MethodError(
            f"{len(attributions)} attributions for {len(batch)} texts; give one per text, in order"
        )
    matrix = np.zeros(batch.shape)
    valid = batch.valid.cpu().numpy()
    for i, attribution in enumerate(attributions):
        scores = attribution.at(attribution.sites[-1] if site is None else site)
        matrix[i, valid[i]] = _on_tokens(scores, attribution, batch, i)
    return matrix


def _on_tokens(scores: np.ndarray, attribution: Attribution, batch: Batch, i: int) -> np.ndarray:
    """The scores of one text for the model's own tokens. If the attribution has other tokens, such as words,
    a token gets the score of the one that it shares most characters with."""
    if attribution.text != batch.texts[i]:
        raise MethodError(
            f"attribution {i} is for {attribution.text!r:.60}, the text is {batch.texts[i]!r:.60}; give the "
            f"attributions in the order of the texts"
        )
    if attribution.tokens == batch.tokens[i]:
        return scores
    found = np.zeros(len(batch.offsets[i]))
    own, theirs = batch.segments[i].cpu().numpy()[: len(found)], np.array(attribution.segments)
    for segment in set(attribution.segments):
        here, there = (np.flatnonzero(segments == segment) for segments in (own, theirs))
        spans, others = [batch.offsets[i][k] for k in here], [attribution.offsets[k] for k in there]
        best = best_shared(spans, others)
        found[here[best >= 0]] = scores[there[best[best >= 0]]]
    return found
