"""How few tokens of a text suffice, and whether random choices of tokens do as well.

Two questions are asked of an order of a text's tokens:

- *How few suffice?* `fewest` searches the smallest number of tokens from the top of the order.
- *Is it better than random?* `contrasts` compares the prediction for the tokens at the top of the order with
  that for the tokens at its bottom. A random order has a contrast around 0; its reversal has the opposite.

The same random orders serve all methods: `RANDOM_ORDERS` of each text, and their reversals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .masking import Readings, Views
from .ranking import Ranking, random_rankings

MARGIN = 0.1
"""tokens suffice if the output moves by at most so many nats"""
RANDOM_ORDERS = 5
"""random orders of each text; with their reversals ten"""
READ = (1 / 4, 1 / 16)
"""the shares of tokens, from the top and from the bottom of an order, that its contrast is computed from"""
PARTS = (0, 1 / 16, 1 / 4, 1)
"""the shares of tokens with which random orders are tried, to find how many tokens they need"""
LARGEST_ODDS = 10.0
"""log-odds are clamped to this: larger ones are rounding errors"""


def suffices(found: Readings, margin: float) -> np.ndarray:
    """Whether the prediction stays and the divergence of the output is within the margin."""
    return (found.agrees == 1) & (found.divergence <= margin)


def fewest(views: Views, ranking: Ranking, margin: float = MARGIN) -> np.ndarray:
    """(texts,): how few tokens of each text suffice, taken from the most important one on.

    The number of kept tokens is halved as long as they suffice; then bisection finds the number. So every
    larger number that was tried suffices too. (The smallest number that suffices would often be luck.)
    Tokens with equal scores are kept or removed together.
    """
    low, high = np.full(len(views), -1), ranking.counts.copy()

    def narrow(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        enough = suffices(views.read(rows, ranking.first(ranking.untied(counts, rows), rows)), margin)
        high[rows[enough]], low[rows[~enough]] = counts[enough], counts[~enough]
        return enough

    rows = np.nonzero(high)[0]
    while len(rows):
        enough = narrow(rows, high[rows] // 2)
        rows = rows[enough & (high[rows] > 0)]
    while len(rows := np.nonzero((high - low > 1) & (low >= 0))[0]):
        narrow(rows, (low[rows] + high[rows]) // 2)
    return high


def random_orders(views: Views) -> list[Ranking]:
    """The random orders of each text. They are the same for all methods that are compared with them."""
    return random_rankings(views, RANDOM_ORDERS)


def median_need(views: Views, orders: Sequence[Ranking], margin: float = MARGIN) -> np.ndarray:
    """(texts,): the median number of tokens that random orders and their reversals need.

    An order holds at one of the `PARTS` if that share of its tokens and all larger ones suffice, as in
    `fewest`. The median is the number with which half of the orders hold, by linear interpolation between
    the parts.
    """
    counts = np.stack([(views.counts * part).astype(int) for part in PARTS])  # (parts, texts)
    holding = np.stack(
        [_holding(views, orders, count, margin) for count in counts[:-1]]
    )  # (parts, orders, texts)
    held = np.logical_and.accumulate(holding[::-1])[::-1].mean(1)
    shares = np.concatenate([held, np.ones((1, len(views)))])  # the whole text always suffices
    return np.array([_crossing(*one) for one in zip(shares.T, counts.T, strict=True)])


def _holding(views: Views, orders: Sequence[Ranking], counts: np.ndarray, margin: float) -> np.ndarray:
    """(orders, texts) bool: whether `counts` tokens suffice, for the orders and their reversals."""
    return suffices(views.read_steps(random_sets(orders, counts)), margin).T


def _crossing(shares: np.ndarray, counts: np.ndarray) -> float:
    """The count at which growing shares reach one half."""
    after = int(np.argmax(shares >= 0.5))
    if after == 0:
        return float(counts[0])
    return float(np.interp(0.5, shares[after - 1 : after + 1], counts[after - 1 : after + 1]))


def contrasts(views: Views, orders: Sequence[Ranking]) -> np.ndarray:
    """(orders, texts): the log-odds of the prediction for the top tokens alone, minus the log-odds for the
    bottom tokens alone, summed over the shares in `READ`."""
    keep = np.stack([part for order in orders for part in _ends(order)], axis=1)  # (texts, views, tokens)
    odds = log_odds(views.read_steps(keep).log_probability)
    first, last = odds.reshape(len(views), len(orders), len(READ), 2).transpose(3, 1, 0, 2)
    return (first - last).sum(-1)


def _ends(order: Ranking) -> list[np.ndarray]:
    parts = [np.maximum(1, (order.counts * part).astype(int)) for part in READ]
    return [one.first(count) for count in parts for one in (order, order.reversed())]


def log_odds(log_probability: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        odds = log_probability - np.log(-np.expm1(np.minimum(log_probability, 0)))
    return np.clip(odds, -LARGEST_ODDS, LARGEST_ODDS)


def p_values(own: np.ndarray, random: np.ndarray) -> np.ndarray:
    """P-values from ranks: the rank of the contrast (texts,) among itself, those of random orders (orders,
    texts) and those of all reversals.

    If the explanation is a random order too, each of these is equally likely to be the largest.
    """
    alike = np.concatenate([own[None], random])
    return (np.concatenate([alike, -alike]) >= own).mean(0)


def random_sets(orders: Sequence[Ranking], counts: np.ndarray) -> np.ndarray:
    """(texts, choices, tokens) bool: random choices of `counts` tokens of each text."""
    return np.stack([order.first(counts) for one in orders for order in (one, one.reversed())], axis=1)
