"""The tables of `masklens.analysis` over a corpus run, some texts in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from ..analysis import VALUES, Group, GroupTable, Value, load_spacy, part_of_speech_labels, token_labels
from ..attribution import Attribution
from ..bootstrap import RunningMean, sample_weights
from ..errors import MethodError
from .evaluate import AT_ONCE
from .shards import read_back


class Tokens(NamedTuple):
    """Some texts' tokens of one group."""

    name: str
    values: list[np.ndarray]
    """for each text, one value a token"""
    by_site: np.ndarray
    """(sites,): summed scores; none where the group is a site"""


class Totals:
    """Sums over the tokens of a group."""

    def __init__(self) -> None:
        self.mean, self.squares = RunningMean(), 0.0
        self.by_site: np.ndarray | float = 0.0

    def add(self, tokens: Tokens, weights: np.ndarray) -> None:
        """Tokens of some texts, and how often each text counts in each sample (samples, texts)."""
        sums = np.array([values.sum(dtype=float) for values in tokens.values])
        self.mean.add(sums, np.array([len(values) for values in tokens.values]), weights)
        self.squares += sum(np.square(values, dtype=float).sum() for values in tokens.values)
        self.by_site = self.by_site + tokens.by_site

    def group(self, name: str) -> Group:
        mean, count = self.mean.value, int(self.mean.count)
        deviation = max(0.0, self.squares / count - mean**2) ** 0.5
        sites = tuple((np.atleast_1d(self.by_site) / count).tolist())
        return Group(name, count, mean, deviation, *self.mean.bounds(), sites)


def group_run(
    url: str,
    by: Literal["layer", "part_of_speech"] = "layer",
    value: Value = "sum",
    special: bool = True,
    nlp: Any = None,
    seed: int = 0,
) -> GroupTable:
    """Group the tokens of a corpus run, as `analysis.by_layer` and `analysis.by_part_of_speech` do.

    Means are exact; intervals come from the Poisson bootstrap over texts.
    """
    if by not in ("layer", "part_of_speech") or value not in VALUES:
        raise MethodError(
            f"by={by!r}, value={value!r}; by is 'layer' or 'part_of_speech', value one of {[*VALUES]}"
        )
    nlp = load_spacy() if by == "part_of_speech" and nlp is None else nlp
    totals: dict[str, Totals] = {}
    sites: tuple[int, ...] = ()
    for number, some in enumerate(_parts(url)):
        sites = some[0].sites
        weights = sample_weights(seed, number, len(some))
        found = _by_layer(some, special) if by == "layer" else _by_tag(some, value, special, nlp)
        for tokens in found:
            totals.setdefault(tokens.name, Totals()).add(tokens, weights)
    groups = tuple(one.group(name) for name, one in totals.items() if one.mean.count)
    if not groups:
        raise MethodError(f"{url} holds no explained text to group")
    if by == "layer":
        return GroupTable(groups, (), "score", "site")
    return GroupTable(groups, sites, value, "part of speech").ordered()


def _parts(url: str) -> Iterator[list[Attribution]]:
    rows = (row.attribution for row in read_back(url))
    while some := list(islice(rows, AT_ONCE)):
        yield some


def _by_layer(some: Sequence[Attribution], special: bool) -> Iterator[Tokens]:
    where = [np.array([special or not mark for mark in a.special]) for a in some]
    for i, site in enumerate(some[0].sites):
        values = [a.scores[i][keep] for a, keep in zip(some, where, strict=True)]
        yield Tokens(str(site), values, np.zeros(0))


def _by_tag(some: Sequence[Attribution], value: Value, special: bool, nlp: Any) -> Iterator[Tokens]:
    tags = part_of_speech_labels(some, nlp)
    labels = [token_labels(a, one, special) for a, one in zip(some, tags, strict=True)]
    for name in dict.fromkeys(label for one in labels for label in one if label is not None):
        where = [np.array([label == name for label in one], dtype=bool) for one in labels]
        scores = [a.scores[:, keep] for a, keep in zip(some, where, strict=True)]
        by_site = np.concatenate(scores, axis=1).sum(1, dtype=float)
        yield Tokens(name, [VALUES[value](one) for one in scores], by_site)
