"""Tables of tokens over corpus runs: the same numbers as in memory."""

import pytest

from masklens import analysis
from masklens.corpus import read_back
from masklens.corpus import summaries as grouping
from masklens.corpus.summaries import group_run
from masklens.errors import MethodError


class Word:
    def __init__(self, text, start):
        self.text, self.idx, self.is_space = text, start, False
        self.pos_ = "ADJ" if text in ("dull", "funny", "red", "fast") else "X"


class Tagger:
    """A pipeline that knows four adjectives."""

    def pipe(self, texts):
        for text in texts:
            words, at = [], 0
            for word in text.split(" "):
                words.append(Word(word, at))
                at += len(word) + 1
            yield words


def same(found, expected):
    assert (found.by, found.value, found.sites) == (expected.by, expected.value, expected.sites)
    assert {group.name for group in found.groups} == {group.name for group in expected.groups}
    for group in expected.groups:
        here = found[group.name]
        assert here.count == group.count
        assert here.mean == pytest.approx(group.mean, abs=1e-6)
        assert here.deviation == pytest.approx(group.deviation, abs=1e-5)
        assert here.sites == pytest.approx(group.sites, abs=1e-6)
        assert here.low == pytest.approx(group.low, abs=0.25 * (group.high - group.low) + 1e-6)


@pytest.fixture
def everything(runs, monkeypatch):
    monkeypatch.setattr(grouping, "AT_ONCE", 11)
    return runs["gradient"], [row.attribution for row in read_back(runs["gradient"])]


def test_layers(everything):
    url, attributions = everything
    same(group_run(url), analysis.by_layer(attributions))
    same(group_run(url, special=False), analysis.by_layer(attributions, special=False))


@pytest.mark.parametrize("value", ["sum", "deepest"])
def test_parts_of_speech(everything, value):
    url, attributions = everything
    found = group_run(url, "part_of_speech", value, nlp=Tagger())
    same(found, analysis.by_part_of_speech(attributions, value, nlp=Tagger()))
    assert {"ADJ", "X", "[CLS]", "[SEP]"} == {group.name for group in found.groups}


def test_what_is_not_known_is_an_error(everything):
    with pytest.raises(MethodError, match="by='colour'"):
        group_run(everything[0], "colour")
