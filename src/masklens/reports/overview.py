"""The part of a report about the texts as a whole: word clouds, scores by layer and by part of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..attribution import Attribution
from ..evaluation.specificity import class_words
from ..evaluation.verify import is_keep_probability
from ..records.layers import site_name
from .page import Cloud, Grid, Panel, layer_chart

if TYPE_CHECKING:
    from ..analysis import GroupTable

FEWEST_TEXTS = 8
"""with fewer texts there is no word cloud, because it would show little but the texts themselves"""
MOST_CLOUDS = 12
WORDS = 50
Sets = Mapping[str, Sequence[Attribution]]


def overview(sets: Sets, parts_of_speech: bool = False) -> list[Panel]:
    """All panels that need no model. Parts of speech need spaCy and English texts."""
    several = {name: chosen for name, chosen in sets.items() if len(chosen) >= 2}
    parts = [*kept_by_site(several), *list(word_clouds(several))[:MOST_CLOUDS]]
    return parts + (list(speech_tables(several)) if parts_of_speech else [])


def kept_by_site(sets: Sets) -> list[Panel]:
    """For lenses: the share of tokens that is kept at each site, the mean over tokens of P(kept)."""
    lenses = {
        name: chosen
        for name, chosen in sets.items()
        if all(is_keep_probability(a) and len(a.sites) > 1 and a.sites == chosen[0].sites for a in chosen)
    }
    if not lenses:
        return []
    kept = {
        name: {site: float(np.concatenate([a.at(site) for a in chosen]).mean()) for site in chosen[0].sites}
        for name, chosen in lenses.items()
    }
    note = "The mean probability that a token is kept: where the curve falls, the model has made up its mind."
    return [layer_chart("What is kept at each layer", kept, note=note, measure="kept")]


def word_clouds(sets: Sets) -> Iterator[Cloud]:
    """For each set and predicted class the words with the largest summed scores."""
    for name, chosen in sets.items():
        classes = {a.prediction for a in chosen}
        if len(chosen) < FEWEST_TEXTS or len(classes) > len(chosen) / 2:
            continue
        site = telling_site(chosen)
        note = f"{name}, {site_name(site)}: words by their summed scores in the texts predicted so."
        for cls, words in class_words(chosen, site=site).top(WORDS).items():
            found = [(word, weight) for word, weight in words if weight > 0]
            if found:
                yield Cloud(cls, found, note, name, site)


def telling_site(chosen: Sequence[Attribution]) -> int:
    """The deepest site at which the texts' own tokens have 5% of the scores or more.

    At the very last site, often only the token that the output is read from has a gradient.
    """
    sites = [site for site in chosen[0].sites if all(site in a.sites for a in chosen)]
    for site in reversed(sites):
        own = sum(float(np.abs(a.at(site)[~np.array(a.special, dtype=bool)]).sum()) for a in chosen)
        if own > 0.05 * sum(float(np.abs(a.at(site)).sum()) for a in chosen):
            return site
    return sites[-1] if sites else chosen[0].sites[-1]


def speech_tables(sets: Sets) -> Iterator[Grid]:
    """Scores by part of speech and site, for each set."""
    from ..analysis import by_part_of_speech, load_spacy

    nlp = load_spacy()
    for name, chosen in sets.items():
        yield group_grid(by_part_of_speech(chosen, "mean", nlp=nlp), f"By part of speech: {name}")


def group_grid(table: GroupTable, title: str) -> Grid:
    """A table of groups, with the mean score at each site in colour."""
    several = len(table.sites) > 1
    columns = [table.by, "tokens", table.value, *(site_name(site) for site in table.sites if several)]
    rows = [[g.name, g.count, g.mean, *(g.sites if several else ())] for g in table.groups]
    heat = range(3, len(columns)) if several else [2]
    return Grid(title, columns, rows, "Mean over tokens.", list(heat))
