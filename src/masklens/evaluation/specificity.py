"""Do an explanation's words tell the classes apart? Token overlap (Hou & Castanon 2023, section 3.2).

The scores of a word are summed over all texts of a predicted class and weighted by how rare the word is
in everyday language. A word that is at the top of several classes is specific to none of them.
"""

from __future__ import annotations

import lzma
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from ..attribution import Attribution
from ..bootstrap import bounds
from ..errors import FileError, MethodError

Rarity = Callable[[str], float]


def document_rarity(path: str | os.PathLike[str]) -> Rarity:
    """Inverse document frequency from a table of words and counts, log((1 + N) / (1 + n)).

    The file (.tsv, may be .xz) starts with a line `#N_documents N`. Each further line is `word count`.
    """
    path = Path(path)
    if not path.exists():
        raise FileError(f"no file {path}; give a table of document frequencies")
    try:
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as lines:
            name, _, total = next(lines, "").rstrip("\n").partition("\t")
            counts = {word: int(count) for word, _, count in (line.partition("\t") for line in lines)}
        documents = int(total) if name == "#N_documents" else -1
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise FileError(f"{path} cannot be read as words, tabs and counts: {error}") from error
    if documents < 0 or min(counts.values(), default=0) < 0:
        raise FileError(
            f"{path} starts with {name!r}; the first line must be '#N_documents', a tab, a number, and no "
            f"count may be below 0"
        )
    return lambda word: math.log((1 + documents) / (1 + counts.get(word.casefold(), 0)))


def no_rarity(word: str) -> float:
    """Every word counts the same."""
    return 1.0


@dataclass(frozen=True, eq=False)
class ClassWords:
    """How important each word is to each predicted class.

    A word is what lies between spaces and punctuation, in small letters; sub-words are merged first.
    Punctuation is left out: it has no document frequency.
    """

    classes: tuple[str, ...]
    words: tuple[str, ...]
    rarity: np.ndarray
    """(words,)"""
    entries: np.ndarray
    """(entries, 3) int: text, class, word"""
    values: np.ndarray
    """(entries,) summed score of that word in that text"""
    texts: int

    @cached_property
    def scores(self) -> np.ndarray:
        """(classes, words): total score times rarity; -inf where the class never has the word."""
        return self.weighted(np.ones(self.texts))

    def weighted(self, counts: np.ndarray) -> np.ndarray:
        """The scores if each text occurred `counts` times."""
        text, cls, word = self.entries.T
        size = (len(self.classes), len(self.words))
        flat = cls * size[1] + word
        total = np.bincount(flat, self.values * counts[text], minlength=size[0] * size[1]).reshape(size)
        seen = np.bincount(flat, counts[text], minlength=size[0] * size[1]).reshape(size) > 0
        return np.where(seen, total * self.rarity, -np.inf)

    def top(self, count: int) -> dict[str, list[tuple[str, float]]]:
        """For each class, its top words with their scores, best first."""
        out = {}
        for name, row in zip(self.classes, self.scores, strict=True):
            best = np.argsort(-row, kind="stable")[:count]
            out[name] = [(self.words[i], float(row[i])) for i in best if np.isfinite(row[i])]
        return out

    def shared(self, count: int) -> dict[tuple[str, str], list[str]]:
        """For each pair of classes, the words in the top of both (the paper's Tables 3 to 9)."""
        top = {name: [word for word, _ in words] for name, words in self.top(count).items()}
        return {
            (a, b): [word for word in top[a] if word in set(top[b])] for a, b in combinations(self.classes, 2)
        }

    def overlap(self, count: int) -> float:
        """The share of words in the top `count` of both classes of a pair, averaged over the pairs."""
        return float(_overlap(self.scores, count))

    def overlap_interval(self, count: int, seed: int = 0) -> tuple[float, float]:
        """95% bootstrap interval of the overlap over texts."""
        generator = np.random.default_rng(seed)
        even = np.full(self.texts, 1 / self.texts)
        samples = (generator.multinomial(self.texts, even) for _ in range(200))
        return bounds([_overlap(self.weighted(counts), count) for counts in samples])


def _overlap(scores: np.ndarray, count: int) -> float:
    classes = len(scores)
    if classes < 2:
        return float("nan")
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    chosen = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(chosen, best, True, axis=1)
    chosen &= np.isfinite(scores)
    counts = chosen.sum(0)  # a word at the top of c classes is shared by c (c - 1) / 2 pairs
    return float((counts * (counts - 1) / 2).sum()) / (math.comb(classes, 2) * count)


def class_words(
    attributions: Iterable[Attribution], rarity: Rarity = no_rarity, site: int | None = None
) -> ClassWords:
    """Sum the scores of words over all texts of each predicted class; by default at the deepest site."""
    totals: dict[tuple[int, str, str], float] = defaultdict(float)
    texts = 0
    for attribution in attributions:
        for word, score in _word_scores(attribution, site):
            totals[texts, attribution.prediction, word] += score
        texts += 1
    if not totals:
        raise MethodError("no words were given; token overlap needs attributions of at least one text")
    classes = tuple(sorted({cls for _, cls, _ in totals}))
    words = tuple(sorted({word for _, _, word in totals}))
    class_id, word_id = ({name: i for i, name in enumerate(names)} for names in (classes, words))
    entries = np.array([(text, class_id[cls], word_id[word]) for text, cls, word in totals])
    weights = np.array([rarity(word) for word in words])
    return ClassWords(classes, words, weights, entries, np.array(list(totals.values())), texts)


def _word_scores(attribution: Attribution, site: int | None) -> list[tuple[str, float]]:
    merged = attribution.words()
    scores = merged.at(merged.sites[-1] if site is None else site)
    rows = zip(merged.tokens, scores, merged.special, strict=True)
    return [
        (word.casefold(), float(score))
        for word, score, special in rows
        if not special and any(map(str.isalnum, word))
    ]
