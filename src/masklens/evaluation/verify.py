"""`verify`: keep the tokens that an explanation says are enough, and run the model again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError
from ..model.subject import as_subject
from ..records.generation import Generation
from ..records.layers import as_site
from ..records.verification import LEVEL, Verification
from .masking import Views
from .ranking import Ranking, random_rankings, rank, ranking_site, without_order_in_ties
from .sufficiency import (
    MARGIN,
    RANDOM_ORDERS,
    contrasts,
    fewest,
    median_need,
    p_values,
    random_orders,
    random_sets,
    suffices,
)

THRESHOLD = 0.5
"""a lens keeps the tokens whose keep probability is above this"""


@dataclass(frozen=True)
class Question:
    """The arguments of a verification; see `verify`."""

    keep: float | None = None
    margin: float = MARGIN
    guard: float | None = None
    same_prediction: bool = True
    control: bool = True

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 <= self.keep <= 1:
            raise MethodError(f"keep is {self.keep}; it is a probability or a share, between 0 and 1")
        for name, nats in (("margin", self.margin), ("guard", self.guard)):
            if nats is not None and nats < 0:
                raise MethodError(f"{name} is {nats}; it is a divergence in nats, 0 or more")


def verify(
    subject: Any,
    attributions: Sequence[Attribution],
    keep: float | None = None,
    replace: Any = "mask",
    site: int | str | None = None,
    margin: float = MARGIN,
    guard: float | None = None,
    same_prediction: bool = True,
    control: bool = True,
) -> list[Verification]:
    """Find out how few of each text's tokens suffice, and whether random explanations do as well.

        for text, proof in zip(texts, verify(subject, explain(subject, texts))):
            proof.verdict, proof.needed, proof.random_needed, proof.probability_after

    Tokens suffice if, with them alone, the prediction is the same and the output moves by at most the margin.

    - A lens (its scores are keep probabilities) has its own mask. The kept tokens have to suffice. Removing
      them has to lower the prediction more than removing as many random tokens.
    - For every other method, the fewest tokens that suffice are searched in the order of the scores. They
      must not be more than random orders need, and the order is compared with ten random orders (see
      `evaluation.sufficiency`).

    Args:
        keep: a fixed choice instead of a search: for a lens the probability above which tokens are kept, for
            every other method the share of top-ranked tokens. It is compared with random choices of as many
            tokens.
        replace: "mask" (removed tokens become the mask token and leave attention), "drop" (they are taken
            out of the text), a vector that takes the place of their word embeddings, a Baseline, or a lens,
            whose learned baseline is used.
        site: the site, or the name of the layer, whose scores are used, by default the deepest at which the
            words of any text have different scores.
        margin: how far the output may move, in nats.
        guard: a margin in nats for every single text. If the prediction of a text changes or its output moves
            by more, further tokens are kept, the most important first, until the text is within the guard.
        same_prediction: whether the guard also keeps the prediction. If not, it bounds the divergence alone,
            which is the constraint of DiffMask's Eq. 2 for every text.
        control: whether random explanations are tried too. Without them there is no verdict.
    """
    attributions = as_attributions(attributions)
    if not attributions:
        return []
    question = Question(keep, margin, guard, same_prediction, control)
    verifier = Verifier(subject, [a.text for a in attributions])
    sites = [ranking_site(attributions) if site is None else as_site(site)]
    return verifier.at_sites(attributions, sites, replace, question)[0]


def as_attributions(given: Any, caller: str = "verify") -> list[Attribution]:
    """The explained texts in a list or a generator; a MethodError for anything else."""
    found = list(given) if isinstance(given, Iterable) else [given]
    refuse_answers(found, caller)
    if not isinstance(given, Iterable) or not all(isinstance(one, Attribution) for one in found):
        raise MethodError(f"{caller} takes a list of attributions, not {given!r:.60}; give [attribution]")
    return found


def refuse_answers(given: Iterable[Any], caller: str) -> None:
    """Raise a MethodError if one of them is an explained answer of a language model."""
    if any(isinstance(one, Generation) for one in given):
        raise MethodError(
            f"{caller} is for explained texts, not for an explained answer (Generation); give that to "
            f"verify_generation(subject, answer), or explain a text and its next token with explain"
        )


class Verifier:
    """Verifies explanations of the same texts. The texts and the random orders are run only once."""

    def __init__(self, subject: Any, texts: Sequence[Any]) -> None:
        self.subject, self.texts = as_subject(subject), list(texts)
        self._views: list[Views] = []

    def at_sites(
        self,
        attributions: Sequence[Attribution],
        sites: Sequence[int],
        replace: Any = "mask",
        question: Question = Question(),  # noqa: B008 (frozen)
    ) -> list[list[Verification]]:
        """For each site, one verification per text."""
        kinds = {is_keep_probability(a) for a in attributions}
        if len(kinds) > 1:
            raise MethodError("verify the masks of a lens and the scores of other methods in two calls")
        found = []
        for site in sites:
            views = self.views(removal(replace, site))
            tried = try_removal(views, rank(views, attributions, site), kinds == {True}, question)
            found.append(verifications(views, tried, site, [a.tokens for a in attributions]))
        return found

    def random(self, question: Question = Question()) -> list[Verification]:  # noqa: B008 (frozen)
        """The negative control: the verification of a random order of each text."""
        views = self.views("mask")
        ranking = random_rankings(views, RANDOM_ORDERS + 1)[-1]
        return verifications(views, try_removal(views, ranking, False, question), 0, views.batch.tokens)

    def views(self, how: Any) -> Views:
        """The views of the texts for one way of removing tokens."""
        for views in self._views:
            if views.how is how or (isinstance(how, str) and views.how == how):
                return views
        if self._views:
            first = self._views[0]
            del self._views[1:]  # a lens has another baseline at every site
            self._views.append(Views(self.subject, self.texts, how=how, known=first.known, like=first))
        else:
            self._views.append(Views(self.subject, self.texts, how=how))
        return self._views[-1]


class Tried(NamedTuple):
    """The results of removing tokens; each array has one row per text."""

    kept: np.ndarray
    """(texts, tokens) bool"""
    divergence: np.ndarray
    prediction_kept: np.ndarray
    before: np.ndarray
    after: np.ndarray
    opened: np.ndarray
    enough: np.ndarray
    """whether the kept tokens suffice"""
    tied: np.ndarray
    """whether equal scores make it impossible to choose the tokens"""
    probability_without: np.ndarray | None = None
    random_without: np.ndarray | None = None
    p_value: np.ndarray | None = None
    p_reversed: np.ndarray | None = None
    random_needed: np.ndarray | None = None


def try_removal(views: Views, ranking: Ranking, masks: bool, question: Question) -> Tried:
    """Remove what explanations do not need, and run the model again.

    Args:
        masks: whether the scores are keep probabilities.
    """
    searched = question.keep is None and not masks
    if masks:
        threshold = THRESHOLD if question.keep is None else question.keep
        asked = counts = (ranking.removable & (ranking.scores > threshold)).sum(1)
    else:
        asked = _asked(views, ranking, question)
        counts = ranking.untied(asked)
    kept, said = ranking.first(counts), counts
    if question.guard is not None:
        kept = guarded_tokens(views, ranking, kept, question.guard, question.same_prediction)
        counts = kept.sum(1)
    found, whole = views.read_steps(kept[:, None]).reshape(len(views)), views.whole()
    tried = Tried(
        kept & views.removable,
        found.divergence,
        found.agrees == 1,
        whole.confidence,
        found.confidence,
        counts - said,
        suffices(found, question.margin),
        np.zeros(len(views), bool) if masks else tied(ranking, asked),
    )
    if not question.control:
        return tried
    if searched:
        return _beside_orders(views, ranking, tried, question.margin)
    return _beside_sets(views, tried)


def _asked(views: Views, ranking: Ranking, question: Question) -> np.ndarray:
    if question.keep is None:
        return fewest(views, ranking, question.margin)
    return np.rint(question.keep * ranking.counts).astype(int)


def tied(ranking: Ranking, asked: np.ndarray) -> np.ndarray:
    """(texts,): whether all scores are equal, or all tokens below the cut have the same score as the last
    token above it."""
    everything = (asked < ranking.counts) & (ranking.untied(asked) == ranking.counts)
    return everything | (
        (ranking.untied(np.minimum(1, ranking.counts)) == ranking.counts) & (ranking.counts > 1)
    )


def _beside_orders(views: Views, ranking: Ranking, tried: Tried, margin: float) -> Tried:
    """Add the comparison with random orders: p-values from contrasts, and the number that they need."""
    orders = random_orders(views)
    own = contrasts(views, [without_order_in_ties(ranking, orders[0])])[0]
    random = contrasts(views, orders)
    return tried._replace(
        p_value=p_values(own, random),
        p_reversed=p_values(-own, random),
        random_needed=median_need(views, orders, margin),
    )


def _beside_sets(views: Views, tried: Tried) -> Tried:
    """Add the comparison with random choices: the prediction without the kept tokens, and without as many
    random tokens."""
    random = views.read_steps(~random_sets(random_orders(views), tried.kept.sum(1)))  # (texts, choices)
    own = views.read_steps(~tried.kept[:, None])
    as_low = (random.log_probability <= own.log_probability).sum(1)
    return tried._replace(
        probability_without=own.confidence[:, 0],
        random_without=np.median(random.confidence, axis=1),
        p_value=(1 + as_low) / (1 + random.confidence.shape[1]),
    )


def verifications(
    views: Views, tried: Tried, site: int, tokens: Sequence[Sequence[str]]
) -> list[Verification]:
    """A record for each text; `tokens` are those of the explanations."""
    removed, counts = views.removable & ~tried.kept, views.counts
    made = []
    for i in range(len(views)):
        same = tuple(tokens[i]) == tuple(views.batch.tokens[i])
        numbers = np.nonzero(removed[i][views.valid[i]])[0].tolist() if same else []
        made.append(
            Verification(
                site=site,
                tokens=int(counts[i]),
                needed=int(tried.kept[i].sum()),
                divergence=float(tried.divergence[i]),
                prediction_kept=bool(tried.prediction_kept[i]),
                probability_before=float(tried.before[i]),
                probability_after=float(tried.after[i]),
                verdict=_verdict(tried, i, int(counts[i])),
                **{name: _at(getattr(tried, name), i) for name in BESIDE},
                removed=tuple(numbers),
                opened=int(tried.opened[i]),
            )
        )
    return made


BESIDE = ("probability_without", "random_without", "p_value", "p_reversed", "random_needed")


def _at(values: np.ndarray | None, i: int) -> float | None:
    return None if values is None else float(values[i])


def _verdict(tried: Tried, i: int, count: int) -> Any:
    if tried.p_value is None:
        return None
    needed = tried.kept[i].sum()
    if needed == 0 and tried.enough[i]:
        return "no token needed"
    if tried.tied[i]:
        return "ties"
    if not tried.enough[i] or needed == count:
        return "not sufficient"
    few = tried.random_needed is None or needed <= np.ceil(tried.random_needed[i])
    return "sufficient" if few and tried.p_value[i] <= LEVEL else "no better than random"


def guarded_tokens(
    views: Views, ranking: Ranking, kept: np.ndarray, margin: float, same_prediction: bool = True
) -> np.ndarray:
    """(texts, tokens) bool: the kept tokens, and further tokens for texts that are not within the guard."""

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
    """(texts,): how many tokens of each text to keep so that it holds (is within the guard).

    A text that holds already keeps `said` tokens. Otherwise 1, 2, 4, ... more are tried until it holds, and
    bisection finds the number. The whole text always holds.

    Args:
        holds: a function from the numbers of some texts and a count for each to whether they hold, (some,)
            bool. The last count of a text for which it returns true is the result.
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
    """The way of removing tokens at a site. A lens has a function from a site to its Baseline there."""
    given = getattr(replace, "baseline", replace)
    return given(site) if callable(given) else given


def is_keep_probability(attribution: Attribution) -> bool:
    """Whether the scores are probabilities that a token is kept, as a lens gives them."""
    return attribution.merge == "max"
