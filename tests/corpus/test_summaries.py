"""Tables of tokens over corpus runs, some texts in memory at a time: the same numbers as for all at once."""

import pytest

from masklens import analysis, bootstrap
from masklens.corpus import read_back


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
def compared(runs, monkeypatch):
    """What a table is over a generator in parts of eleven texts, and over a list in one part."""

    def both(table):
        with monkeypatch.context() as patch:
            patch.setattr(bootstrap, "AT_ONCE", 11)
            found = table(row.attribution for row in read_back(runs["gradient"]))
        return found, table([row.attribution for row in read_back(runs["gradient"])])

    return both


@pytest.mark.parametrize("special", [True, False])
def test_layers(compared, special):
    same(*compared(lambda out: analysis.by_layer(out, special=special)))


@pytest.mark.parametrize("value", ["sum", "deepest"])
def test_parts_of_speech(compared, value):
    found, expected = compared(lambda out: analysis.by_part_of_speech(out, value, nlp=Tagger()))
    same(found, expected)
    assert {"ADJ", "X", "[CLS]", "[SEP]"} == {group.name for group in found.groups}
