"""Exact match and F1 worked by hand."""

from __future__ import annotations

import pytest

from masklens.tasks.answers import exact_match, normalise, word_f1


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("The  Denver Broncos!", "denver broncos"),
        ("a an the", ""),
        ("Theatre, an\tAnthem", "theatre anthem"),
        ("U.S.", "us"),
        ("don't", "dont"),
        ("the-rapist", "therapist"),  # punctuation goes before articles do
        ("“quoted”", "“quoted”"),  # only ASCII punctuation goes
    ],
)
def test_normalised_answers(answer: str, plain: str) -> None:
    assert normalise(answer) == plain


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "f1"),
    [
        ("Denver Broncos", ["the Denver Broncos", "Broncos"], 1, 1),
        # one of two words right, against a gold of one: precision 1/2, recall 1
        ("Denver Broncos", ["Broncos"], 0, 2 / 3),
        # the best gold answer counts: 2/3 against the first, 4/5 against the second
        ("gold and black", ["gold", "black and"], 0, 4 / 5),
        ("red", ["blue", "green"], 0, 0),
        # a word counts as often as it occurs: 1 in common, 3 and 1 words
        ("no no no", ["no"], 0, 1 / 2),
        ("yes", "Yes.", 1, 1),  # a gold answer by itself
        ("", [], 1, 1),  # no answer, and none was found
        ("yes", [], 0, 0),
        ("the", ["a"], 1, 1),  # nothing is left of either
        ("the", ["cat"], 0, 0),
    ],
)
def test_best_over_gold_answers(prediction: str, golds: list[str], em: float, f1: float) -> None:
    assert exact_match(prediction, golds) == em
    assert word_f1(prediction, golds) == pytest.approx(f1)


def test_harmonic_mean() -> None:
    said, gold = "one two three four five", "four five six"
    precision, recall = 2 / 5, 2 / 3
    assert word_f1(said, gold) == pytest.approx(2 * precision * recall / (precision + recall))
