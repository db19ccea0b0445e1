"""Groups of tokens by hand, and parts of speech on real sentences where spaCy is there."""

from __future__ import annotations

import json

import numpy as np
import pytest

import masklens
from masklens import analysis
from masklens.attribution import Attribution
from masklens.errors import MethodError


def attribution(text: str, pieces: list[tuple[int, int]], scores) -> Attribution:
    """[CLS], the given pieces of the text, [SEP]."""
    spans = [(0, 0), *pieces, (0, 0)]
    names = ["[CLS]", *(text[start:end] for start, end in pieces), "[SEP]"]
    special = [True, *[False] * len(pieces), True]
    scores = np.asarray(scores, dtype=float)
    return Attribution(
        text, tuple(names), tuple(spans), tuple(special), (0,) * len(names), tuple(range(len(scores))),
        scores, "a", "a", "diffmask", merge="max",
    )  # fmt: skip


GOOD = attribution("good film", [(0, 4), (5, 7), (7, 9)], [[0.5, 1, 0.2, 0, 0], [0.5, 0.9, 0.2, 0.2, 0.1]])
BAD = attribution("bad", [(0, 3)], [[0.1, 0.8, 0.2], [0.3, 0.2, 0.0]])
SPANS = [[(0, 4, "+"), (5, 9, "0")], [(0, 3, "-")]]


def test_means_by_span():
    table = masklens.analysis.by_label([GOOD, BAD], SPANS)
    assert {g.name: g.count for g in table.groups} == {"+": 1, "0": 2, "-": 1, "[CLS]": 2, "[SEP]": 2}
    assert table["+"].mean == pytest.approx(1.9)
    assert table["0"].mean == pytest.approx(0.3) and table["0"].deviation == pytest.approx(0.1)
    assert table["0"].sites == pytest.approx((0.1, 0.2))
    assert table["[CLS]"].mean == pytest.approx((1.0 + 0.4) / 2)
    assert [g.name for g in table.groups][0] == "+"  # the largest first
    assert [g.name for g in table.ordered(["-", "0"]).groups][:3] == ["-", "0", "+"]


def test_values_and_special_tokens():
    plain = analysis.by_label([GOOD, BAD], SPANS, value="deepest", special=False)
    assert {g.name for g in plain.groups} == {"+", "0", "-"}
    assert plain["0"].mean == pytest.approx(0.2)
    assert analysis.by_label([GOOD, BAD], SPANS, value="mean")["+"].mean == pytest.approx(0.95)


def test_one_label_a_token_is_the_same_as_spans():
    each = [["x", "+", "0", "0", None], [None, "-", None]]
    assert analysis.by_label([GOOD, BAD], each) == analysis.by_label([GOOD, BAD], SPANS)


def test_a_token_gets_the_label_it_shares_most_with():
    split = attribution("can't", [(0, 3), (3, 5)], np.zeros((1, 4)))
    assert analysis.aligned(split, [(0, 2, "AUX"), (2, 5, "PART")]) == [None, "AUX", "PART", None]
    assert analysis.aligned(split, []) == [None] * 4


def test_by_layer():
    table = analysis.by_layer([GOOD, BAD], special=False)
    assert [g.name for g in table.groups] == ["words", "embeddings"]
    assert table["words"].mean == pytest.approx((1 + 0.2 + 0 + 0.8) / 4)
    assert table["embeddings"].mean == pytest.approx((0.9 + 0.2 + 0.2 + 0.2) / 4)
    assert table.plot().axes[0].get_xlabel() == "mean score"


def test_intervals_hold_the_mean_and_shrink():
    rng = np.random.default_rng(0)
    many = [attribution("good", [(0, 4)], rng.random((2, 3))) for _ in range(200)]
    few, all_ = (analysis.by_label(a, [[(0, 4, "w")]] * len(a))["w"] for a in (many[:20], many))
    for group in (few, all_):
        assert group.low < group.mean < group.high
    assert all_.high - all_.low < few.high - few.low
    # two uniform scores a token: the sum has mean 1 and deviation (1/6)^0.5
    assert all_.high - all_.low == pytest.approx(2 * 1.96 * (1 / 6 / 200) ** 0.5, rel=0.2)


def test_forms_of_the_table(tmp_path):
    table = analysis.by_label([GOOD, BAD], SPANS)
    plain = json.loads(json.dumps(table.to_dict()))
    assert plain["groups"]["0"]["count"] == 2 and plain["groups"]["0"]["by_site"] == pytest.approx([0.1, 0.2])
    frame = table.to_pandas()
    assert frame.loc["+", "mean"] == pytest.approx(1.9) and frame.loc["0", 1] == pytest.approx(0.2)
    assert "1.900" in str(table) and "[CLS]" in str(table)
    table.plot(title="$5 bars").savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
    with pytest.raises(KeyError, match="there are"):
        table["VERB"]


def test_mistakes_say_what_to_do():
    for bad, match in [
        (lambda: analysis.by_label([], []), "at least one"),
        (lambda: analysis.by_label([GOOD], []), "0 sets of labels"),
        (lambda: analysis.by_label([GOOD], [["a"]]), "1 labels for the 5 tokens"),
        (lambda: analysis.by_label([GOOD], [SPANS[0]], value="best"), "deepest"),
        (lambda: analysis.by_label([BAD], [[None] * 3], special=False), "no token has a label"),
        (lambda: analysis.by_layer([BAD, attribution("bad", [(0, 3)], np.zeros((3, 3)))]), "different sites"),
    ]:
        with pytest.raises(MethodError, match=match):
            bad()


class Word:
    def __init__(self, text: str, idx: int, pos_: str) -> None:
        self.text, self.idx, self.pos_, self.is_space = text, idx, pos_, text.isspace()


class Pipeline:
    """Tags every word but "film" ADJ."""

    def pipe(self, texts):
        for text in texts:
            starts = [i for i in range(len(text)) if i == 0 or text[i - 1] == " "]
            words = [(text[i:].split(" ")[0], i) for i in starts]
            yield [Word(word, i, "NOUN" if word == "film" else "ADJ") for word, i in words]


def test_part_of_speech_with_a_pipeline_of_ones_own():
    table = analysis.by_part_of_speech([GOOD, BAD], nlp=Pipeline())
    assert {g.name: g.count for g in table.groups} == {"ADJ": 2, "NOUN": 2, "[CLS]": 2, "[SEP]": 2}
    assert table["NOUN"].mean == pytest.approx(0.3)


@pytest.mark.slow
def test_part_of_speech_with_spacy():
    pytest.importorskip("spacy", reason="spaCy is not installed")
    try:
        nlp = analysis.load_spacy()
    except MethodError:
        pytest.skip("no English model of spaCy")
    text = "A fast , funny , highly enjoyable movie ."
    pieces, start = [], 0
    for word in text.split():
        pieces.append((start, start + len(word)))
        start += len(word) + 1
    made = attribution(text, pieces, np.ones((1, len(pieces) + 2)))
    counts = {g.name: g.count for g in analysis.by_part_of_speech([made], nlp=nlp).groups}
    assert counts["PUNCT"] == 3 and counts["ADJ"] == 3 and counts["NOUN"] == 1 and counts["[CLS]"] == 1
