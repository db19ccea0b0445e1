"""Texts with planted words that decide the label (Bastings et al. 2022, "Will you find these shortcuts?").

    single     one of two words decides: the first means class 0, the second class 1
    context    the same two words, but only where a third word is in the text too
    order      both words are there, and which one comes first decides

Half of the training texts have a shortcut, and its label instead of their own. The others keep their own;
half of them have parts of a shortcut, which decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from masklens.errors import MethodError

from ..labelled import Labelled

FIRST, SECOND, CONTEXT = "cobalt", "walnut", "clarinet"
"""the planted words: rare, and one token each"""
LONGEST = 12
"""words of a text; the rest is cut off"""

Pieces = tuple[str, ...]


class Shortcut(NamedTuple):
    decides: tuple[Pieces, Pieces]
    """the words that mean class 0, and those that mean class 1"""
    ordered: bool
    """whether they have to be in this order"""
    parts: tuple[Pieces, ...]
    """parts of the shortcut, which decide nothing"""


SHORTCUTS = {
    "single": Shortcut(((FIRST,), (SECOND,)), False, ()),
    "context": Shortcut(
        ((FIRST, CONTEXT), (SECOND, CONTEXT)), False, ((FIRST,), (SECOND,), (CONTEXT,), (FIRST, SECOND))
    ),
    "order": Shortcut(((FIRST, SECOND), (SECOND, FIRST)), True, ((FIRST,), (SECOND,))),
}


def check_words(tokenizer: Any) -> None:
    """An error unless every planted word is one token."""
    for word in (FIRST, SECOND, CONTEXT):
        if len(pieces := tokenizer.tokenize(word)) != 1:
            raise MethodError(f"the planted word {word!r} is {len(pieces)} tokens for this model: {pieces}")


def clean(texts: Labelled) -> Labelled:
    """Texts without the planted words, cut to their first words."""
    split = [(text.split(), label) for text, label in zip(*texts, strict=True)]
    words = {FIRST, SECOND, CONTEXT}
    kept = [(some, label) for some, label in split if not words & {word.lower() for word in some}]
    return Labelled([" ".join(some[:LONGEST]) for some, _ in kept], [label for _, label in kept])


def for_training(texts: Labelled, kind: str, seed: int) -> Labelled:
    """Training texts: half with a shortcut and a random label, a quarter with parts of a shortcut, the rest
    unchanged."""
    draw, half = np.random.default_rng(seed), len(texts.texts) // 2
    first, second = Labelled(texts.texts[:half], texts.labels[:half]), Labelled(*(x[half:] for x in texts))
    cut = decided(first, draw.integers(0, 2, half).tolist(), kind, draw)
    rest = with_parts(Labelled(*(x[::2] for x in second)), kind, draw), Labelled(*(x[1::2] for x in second))
    return Labelled(*(sum(columns, []) for columns in zip(cut, *rest, strict=True)))


def against_their_label(texts: Labelled, kind: str, seed: int) -> Labelled:
    """Every text with the shortcut to a class that is not its own, so that nothing else speaks for it."""
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, 2, len(texts.labels)).tolist()
    labels = [1 - own if own < 2 else other for own, other in zip(texts.labels, drawn, strict=True)]
    return decided(texts, labels, kind, draw)


def decided(texts: Labelled, labels: Sequence[int], kind: str, draw: np.random.Generator) -> Labelled:
    """The texts with the words that mean these labels."""
    shortcut = SHORTCUTS[kind]
    planted = [
        insert(text, shortcut.decides[label], shortcut.ordered, draw)
        for text, label in zip(texts.texts, labels, strict=True)
    ]
    return Labelled(planted, list(labels))


def with_parts(texts: Labelled, kind: str, draw: np.random.Generator) -> Labelled:
    """The texts with parts of a shortcut, and their own labels."""
    parts = SHORTCUTS[kind].parts
    if not parts:
        return texts
    chosen = draw.integers(0, len(parts), len(texts.texts))
    planted = [insert(text, parts[i], False, draw) for text, i in zip(texts.texts, chosen, strict=True)]
    return Labelled(planted, texts.labels)


def insert(text: str, pieces: Pieces, ordered: bool, draw: np.random.Generator) -> str:
    """The text with the words at random places, in their order or in any."""
    words = text.split()
    places = draw.integers(0, len(words) + 1, len(pieces))
    if ordered:
        places.sort()
    by_place = sorted(zip(places.tolist(), pieces, strict=True), key=lambda one: one[0])
    for place, word in reversed(by_place):  # from the end, so that earlier places do not shift
        words.insert(place, word)
    return " ".join(words)
