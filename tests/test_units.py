"""Units of a text: every token is in one, and they end where they should."""

import pytest

from masklens.errors import TextError
from masklens.records.units import Layout, Turn, check_units, find_spans, unit_groups

TEXT = "Dr. Who? It costs 3.50 in all.\nNew line。再见。 Bye"
WORDS = [
    "Dr",
    ".",
    " Who",
    "?",
    " It",
    " costs",
    " 3",
    ".",
    "50",
    " in",
    " all",
    ".",
    "\n",
    "New",
    " line",
    "。",
    "再见",
    "。",
    " Bye",
]


def layout(turns=(), special=()):
    offsets, at = [], 0
    for word in WORDS:
        offsets.append((at, at + len(word)))
        at += len(word)
    return Layout(TEXT, WORDS, offsets, [i in special for i in range(len(WORDS))], turns)


def written(groups):
    return ["".join(WORDS[i] for i in group).strip() for group in groups]


def test_sentences_end_at_marks_and_lines_but_not_inside_numbers():
    groups = unit_groups(layout(), "sentences")
    assert written(groups) == ["Dr.", "Who?", "It costs 3.50 in all.", "New line。", "再见。", "Bye"]
    assert [i for group in groups for i in group] == list(range(len(WORDS)))


def test_sentences_end_with_a_turn_and_special_tokens_are_apart():
    turns = [Turn("user", 0, 3), Turn("user", 8, len(TEXT))]
    groups = unit_groups(layout(turns, special=(2, 3)), "sentences")
    assert written(groups)[:3] == ["Dr.", "Who?", "It costs 3.50 in all."]
    assert written(unit_groups(layout(turns, special=(2, 3)), "turns")) == ["Dr.", "Who?", TEXT[8:].strip()]


def test_tokens_and_words():
    assert unit_groups(layout(), "tokens") == [[i] for i in range(len(WORDS))]
    assert written(unit_groups(layout(), "words"))[:5] == ["Dr", ".", "Who", "?", "It"]


@pytest.mark.parametrize("spans", [["costs 3.50"], [(12, 22)]])
def test_spans_and_what_is_between_them(spans):
    assert written(unit_groups(layout(), find_spans(TEXT, spans))) == [
        "Dr. Who? It",
        "costs 3.50",
        TEXT[22:].strip(),
    ]


@pytest.mark.parametrize(
    ("span", "said"), [("nothing", "nowhere"), (".", "more than once"), ("", "nowhere"), ((5, 900), "not in")]
)
def test_spans_that_are_not_there(span, said):
    with pytest.raises(TextError, match=said):
        find_spans(TEXT, [span])


@pytest.mark.parametrize("units", [None, 3, "pages", [("a",)], [(1.5, 3)], (0, 8), {"words": 1}, ["a", None]])
def test_what_are_no_units(units):
    with pytest.raises(TextError, match="no units .* a list of spans of the prompt"):
        check_units(units, turns=True)
