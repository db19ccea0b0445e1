"""Facts of a record beside its scores: probabilities of all classes, the answer, the sum of the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .labels import chance, printable, visible

if TYPE_CHECKING:
    from ..attribution import Attribution

MOST_CLASSES = 6
"""how many classes a line names, at most"""


def classes(a: Attribution) -> dict[str, Any]:
    """For the viewer: the classes and their probabilities, most probable first; empty if there are none."""
    found = [[visible(name), float(f"{share:.4g}")] for name, share in ranked(a)]
    return {"classes": found} if found else {}


def ranked(a: Attribution) -> list[tuple[str, float]]:
    """The classes with their probabilities, the most probable first."""
    return sorted(a.probabilities.items(), key=lambda one: -one[1])


def answer(a: Attribution) -> dict[str, list[int]]:
    """For the viewer: the numbers of the tokens of the predicted answer."""
    found = answer_tokens(a)
    return {"answer": found} if found else {}


def answer_tokens(a: Attribution) -> list[int]:
    """The tokens of the second text that the predicted answer touches."""
    if a.answer is None:
        return []
    first, last = a.answer
    placed = zip(a.offsets, a.segments, a.special, strict=True)
    return [
        i
        for i, ((start, end), segment, special) in enumerate(placed)
        if segment == 1 and not special and start < last and end > first
    ]


def sums(a: Attribution) -> dict[str, list[list[float]]]:
    """For the viewer, for additive methods: at each site the sum of the scores, and the expected sum."""
    found = [[float(f"{value:.6g}") for value in pair] for pair in completeness(a)]
    return {"sums": found} if found else {}


def completeness(a: Attribution) -> list[tuple[float, float]]:
    """At each site the sum of the scores and the expected sum; empty if the method is not additive."""
    if not a.expected or not np.isfinite(a.scores).all():
        return []
    return list(zip(a.scores.sum(1, dtype=np.float64).tolist(), a.expected, strict=True))


def sum_line(a: Attribution) -> str:
    """The sum of the scores of the deepest site, in words; empty for methods that are not additive."""
    found = completeness(a)
    if not found:
        return ""
    total, expected = found[-1]
    return f"scores sum to {total:.2f}; score of the text minus score of the baseline is {expected:.2f}"


def class_line(a: Attribution) -> str:
    """The classes with their probabilities, in words."""
    return " · ".join(class_parts(a))


def class_parts(a: Attribution) -> list[str]:
    """The parts of `class_line`: one for each of the most probable classes, and the number of the others."""
    found = [f"{printable(name)} {chance(share)}" for name, share in ranked(a)]
    more = [f"{len(found) - MOST_CLASSES} more"] if len(found) > MOST_CLASSES else []
    return found[:MOST_CLASSES] + more
