"""Is an answer right? Exact match and token F1 as in the evaluation of SQuAD (Rajpurkar et al., 2016).

Both compare normalised answers and take the best over the gold answers. No gold answer means that the
question has none: only the empty answer is right then, as in SQuAD 2.0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import TargetError

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an, the; single spaces."""
    plain = answer.lower().translate(PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def gold_answers(label: Any) -> list[str]:
    """The right answers that a label stands for.

    A label is one answer, a list of them, a mapping with the list under "text" (as data sets of SQuAD have
    it), or None where there is no answer.
    """
    found = label.get("text") if isinstance(label, Mapping) else label
    several = [] if found is None else [found] if isinstance(found, str | int | float) else found
    if not isinstance(several, list | tuple) or not all(isinstance(a, str | int | float) for a in several):
        raise TargetError(
            f"{label!r:.80} is not a gold answer; give a text, a list of texts, or {{'text': [...]}}"
        )
    return [str(answer) for answer in several]


def answer_scores(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean exact match and F1 over questions."""
    pairs = list(zip(predictions, golds, strict=True))
    scores = {"exact_match": exact_match, "f1": word_f1}
    return {name: sum(score(*pair) for pair in pairs) / len(pairs) for name, score in scores.items()}


def exact_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1 if the prediction is one of the gold answers, else 0."""
    return _best(lambda said, gold: float(said == gold), prediction, golds)


def word_f1(prediction: str, golds: str | Sequence[str]) -> float:
    """The harmonic mean of precision and recall over words; the best over the gold answers."""
    return _best(_f1, prediction, golds)


def _best(measure: Callable[[str, str], float], prediction: str, golds: str | Sequence[str]) -> float:
    allowed = [golds] if isinstance(golds, str) else list(golds) or [""]
    return max(measure(normalise(prediction), normalise(gold)) for gold in allowed)


def _f1(said: str, gold: str) -> float:
    """Words count as often as they occur; two empty answers are the same."""
    a, b = said.split(), gold.split()
    if not a or not b:
        return float(a == b)
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))
