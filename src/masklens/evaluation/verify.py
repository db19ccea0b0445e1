"""`verify`: really remove what an explanation calls unneeded, and run the model again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError
from ..model.subject import as_subject
from .masking import Views
from .ranking import Ranking, rank

LEVELS = 20
"""shares of its tokens that are tried for a text, from none to all"""


@dataclass(frozen=True)
class Verification:
    """What the model says when only the tokens that an explanation keeps are left."""

    divergence: float
    """of the output from that of the whole text, in nats"""
    prediction_kept: bool
    share_removed: float
    """of the tokens that could be removed"""
    removed: tuple[int, ...] = ()
    """the numbers of the removed tokens; none where the explanation has other tokens than the model"""
    opened: int = 0
    """how many tokens more than the explanation says were kept, for its text to be within the guard"""


def verify(
    subject: Any,
    attributions: Sequence[Attribution],
    keep: float = 0.5,
    replace: Any = "mask",
    site: int | None = None,
    margin: float | None = None,
    guard: float | None = None,
    same_prediction: bool = True,
) -> list[Verification]:
    """Remove the tokens that explanations call unneeded, and see what the model says without them.

        for text, proof in zip(texts, verify(subject, explain(subject, texts))):
            proof.divergence, proof.prediction_kept, proof.share_removed

    Args:
        keep: a threshold for explanations that are keep probabilities (a lens): tokens above it are kept;
            for every other method the share of top-ranked tokens that are kept.
        replace: "mask" (removed tokens become the mask token and leave attention), "drop" (they are taken
            out of the text), a vector that takes the place of their word embeddings, a Baseline, or a lens,
            which has learned its own.
        site: the site whose scores are used, by default the deepest.
        margin: find out for each text how few of its tokens are enough, instead of `keep`: with this share of
            them, most important first, and with every larger one that is tried, the prediction is the same
            and the output moves by at most so many nats.
        guard: a margin in nats that every text has to keep by itself. Where the prediction changes or the
            output moves by more, further tokens are kept, most important first, until neither is so; what
            `keep` leaves is never made smaller.
        same_prediction: whether the guard holds the prediction too; else only the divergence, which is the
            constraint of DiffMask's Eq. 2 for every text, and `prediction_kept` tells what comes of it.
    """
    if not attributions:
        return []
    sites = [attributions[0].sites[-1] if site is None else site]
    return verify_sites(subject, attributions, sites, keep, replace, margin, guard, same_prediction)[0]


def verify_sites(
    subject: Any,
    attributions: Sequence[Attribution],
    sites: Sequence[int],
    keep: float = 0.5,
    replace: Any = "mask",
    margin: float | None = None,
    guard: float | None = None,
    same_prediction: bool = True,
) -> list[list[Verification]]:
    """`verify` at several sites: for each, one verification a text. The texts are encoded and run once."""
    _check(keep, margin, guard)
    subject, texts = as_subject(subject), [a.text for a in attributions]
    by_threshold = np.array([is_keep_probability(a) for a in attributions])[:, None]
    views: Views | None = None
    found = []
    for site in sites:
        how, before = removal(replace, site), views
        if before is None:
            views = Views(subject, texts, how=how)
        elif how is not before.how:
            views = Views(subject, texts, how=how, known=before.known, like=before)
        assert views is not None
        ranking = rank(views, attributions, site)
        tried = try_removal(views, ranking, by_threshold, keep, margin, guard, same_prediction)
        found.append([_verification(views, tried, i, a) for i, a in enumerate(attributions)])
    return found


def _check(keep: float, margin: float | None, guard: float | None) -> None:
    if not 0 <= keep <= 1:
        raise MethodError(f"keep is {keep}; it is a probability or a share, between 0 and 1")
    for name, nats in (("margin", margin), ("guard", guard)):
        if nats is not None and nats < 0:
            raise MethodError(f"{name} is {nats}; it is a divergence in nats, 0 or more")
    if margin is not None and guard is not None:
        raise MethodError(
            "give margin (how few tokens are enough) or guard (keep more where needed), not both"
        )


class Tried(NamedTuple):
    """What came of really removing tokens; each array has a row a text."""

    divergence: np.ndarray
    prediction_kept: np.ndarray
    share_removed: np.ndarray
    removed: np.ndarray
    """(texts, tokens) bool"""
    opened: np.ndarray


def try_removal(
    views: Views,
    ranking: Ranking,
    by_threshold: bool | np.ndarray,
    keep: float,
    margin: float | None = None,
    guard: float | None = None,
    same_prediction: bool = True,
) -> Tried:
    """Remove what a ranking calls unneeded and run the model again; arguments as in `verify`.

    Args:
        by_threshold: whether tokens are kept by a threshold on their scores, else as a share of them; where
            texts differ, (texts, 1).
    """
    if margin is None:
        by_score = ranking.removable & (ranking.scores > keep)
        kept = np.where(by_threshold, by_score, ranking.top(keep))
    else:
        kept = _enough(views, ranking, margin)
    said = kept.sum(1)
    if guard is not None:
        kept = guarded_tokens(views, ranking, kept, guard, same_prediction)
    found = views.read_steps(kept[:, None])
    removed = views.removable & ~kept
    shares = removed.sum(1) / np.maximum(1, views.counts)
    return Tried(found.divergence[:, 0], found.agrees[:, 0] == 1, shares, removed, kept.sum(1) - said)


def _verification(views: Views, tried: Tried, i: int, attribution: Attribution) -> Verification:
    """The record of text i; padding has no number."""
    same = attribution.tokens == views.batch.tokens[i]
    numbers = np.nonzero(tried.removed[i][views.valid[i]])[0].tolist() if same else []
    return Verification(
        divergence=float(tried.divergence[i]),
        prediction_kept=bool(tried.prediction_kept[i]),
        share_removed=float(tried.share_removed[i]),
        removed=tuple(numbers),
        opened=int(tried.opened[i]),
    )


def _enough(views: Views, ranking: Ranking, margin: float) -> np.ndarray:
    """(texts, tokens) bool: the fewest of each text's tokens that are enough, and so are all larger shares.

    The first share that happens to be within the margin would be luck as often as an explanation.
    """
    tried = np.stack([ranking.top(k / LEVELS) for k in range(LEVELS + 1)], axis=1)  # (texts, shares, tokens)
    found = views.read_steps(tried)
    enough = (found.divergence <= margin) & (found.agrees == 1)
    enough[:, -1] = True  # the whole text, up to rounding
    from_here = np.logical_and.accumulate(enough[:, ::-1], axis=1)[:, ::-1]
    return tried[np.arange(len(tried)), from_here.argmax(1)]


def guarded_tokens(
    views: Views, ranking: Ranking, kept: np.ndarray, margin: float, same_prediction: bool = True
) -> np.ndarray:
    """(texts, tokens) bool: tokens kept, and more of them where these do not hold by themselves."""

    def holds(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        found = views.read(rows, ranking.first(counts, rows))
        return (found.divergence <= margin) & ((found.agrees == 1) | (not same_prediction))

    said = kept.sum(1)
    already = holds(np.arange(len(views)), said)
    return ranking.first(enough_to_hold(said, ranking.counts, already, holds))


def enough_to_hold(
    said: np.ndarray,
    whole: np.ndarray,
    already: np.ndarray,
    holds: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """How many tokens of each text to keep so that it holds, (texts,): as many as `said` where these hold
    already; else 1, 2, 4... more until they do, and then bisection. The whole text always holds.

    Args:
        holds: from the numbers of some texts and a count for each to whether it holds, (some,) bool. The
            last count of a text for which it says so is the one that is found.
    """
    low, high = said.copy(), np.where(already, said, whole)

    def try_with(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        there = holds(rows, counts)
        high[rows[there]], low[rows[~there]] = counts[there], counts[~there]
        return rows[~there]

    rows, more = np.nonzero(~already)[0], 1
    while len(rows := rows[said[rows] + more < whole[rows]]):
        rows, more = try_with(rows, said[rows] + more), 2 * more
    while len(rows := np.nonzero(high - low > 1)[0]):
        try_with(rows, (low[rows] + high[rows]) // 2)
    return high


def removal(replace: Any, site: int) -> Any:
    """How tokens are removed; a `baseline` may be a vector, a Baseline, or a function from a site to one."""
    given = getattr(replace, "baseline", replace)
    return given(site) if callable(given) else given


def is_keep_probability(attribution: Attribution) -> bool:
    """Whether the scores are probabilities that a token is kept, as a lens gives them."""
    return attribution.merge == "max"
