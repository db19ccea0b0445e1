"""Token overlap worked out by hand."""

import math

import numpy as np
import pytest

from masklens.attribution import Attribution
from masklens.errors import FileError
from masklens.evaluation.specificity import ClassWords, class_words, document_rarity, no_rarity
from records import make


def explained(text: str, scores: list[float], prediction: str) -> Attribution:
    words = text.split()
    starts = np.cumsum([0, *[len(word) + 1 for word in words]])
    return Attribution(
        text=text,
        tokens=tuple(words),
        offsets=tuple((int(s), int(s) + len(word)) for s, word in zip(starts, words, strict=False)),
        special=(False,) * len(words),
        segments=(0,) * len(words),
        sites=(0,),
        scores=np.array([scores]),
        prediction=prediction,
        target=prediction,
        method="planted",
    )


def sample() -> ClassWords:
    return class_words(
        [
            explained("great plot .", [3, 1, 9], "pos"),
            explained("Great fun plot", [1, 2, 1], "pos"),
            explained("dull plot !", [5, 2, 9], "neg"),
        ]
    )


def test_scores_are_summed_by_class():
    found = sample()
    assert found.classes == ("neg", "pos")
    assert found.top(9)["pos"] == [("great", 4), ("fun", 2), ("plot", 2)]
    assert found.top(9)["neg"] == [("dull", 5), ("plot", 2)]


def test_overlap_by_hand():
    """Top 2: dull, plot and great, fun (a tie with plot, which comes later): none; top 3: plot."""
    found = sample()
    assert found.overlap(2) == 0
    assert found.overlap(3) == pytest.approx(1 / 3)
    assert found.shared(3) == {("neg", "pos"): ["plot"]}
    low, high = found.overlap_interval(3)
    assert 0 <= low <= high <= 1


def test_overlap_counts_every_pair_of_classes():
    """x is at the top of three of three classes: 3 of 3 pairs x 1."""
    found = class_words([explained("x", [1.0], name) for name in "abc"])
    assert found.overlap(1) == 1
    found = class_words([explained(word, [1.0], name) for word, name in zip("xxy", "abc", strict=True)])
    assert found.overlap(1) == pytest.approx(1 / 3)


def test_rare_words_count_more(tmp_path):
    path = tmp_path / "df.tsv"
    path.write_text("#N_documents\t99\nplot\t99\ngreat\t9\n")
    rarity = document_rarity(path)
    assert rarity("plot") == 0
    assert rarity("Great") == pytest.approx(math.log(10))
    assert rarity("unseen") == pytest.approx(math.log(100))
    found = class_words([explained("great plot", [1, 9], "pos")], rarity)
    assert found.top(1)["pos"] == [("great", pytest.approx(math.log(10)))]
    with pytest.raises(FileError, match="N_documents"):
        (tmp_path / "bad.tsv").write_text("plot\t9\n")
        document_rarity(tmp_path / "bad.tsv")


def test_a_word_in_one_text_of_a_class_is_not_in_another_class():
    """A class does not get words it never has, even where their score would be the best."""
    found = class_words([explained("bad", [-1.0], "neg"), explained("fun", [1.0], "pos")], no_rarity)
    assert found.top(5) == {"neg": [("bad", -1.0)], "pos": [("fun", 1.0)]}


def test_sub_words_are_merged_first():
    parts = make(tokens=("[CLS]", "fun", "##ny", "[SEP]"), scores=np.array([[9, 1, 2, 9]]), text="funny")
    moved = Attribution(**{**vars(parts), "offsets": ((0, 0), (0, 3), (3, 5), (0, 0))})
    assert class_words([moved]).top(5) == {"positive": [("funny", 3.0)]}


@pytest.mark.parametrize(
    "content", [b"", b"#N_documents\tx\n", b"#N_documents\t3\nword\n", b"\xff", b"#N_documents\t3\na\t-1\n"]
)
@pytest.mark.parametrize("ending", [".tsv", ".xz"])
def test_a_broken_table_of_frequencies_is_told(content, ending, tmp_path):
    (tmp_path / f"x{ending}").write_bytes(content)
    with pytest.raises(FileError, match=f"x{ending}"):
        document_rarity(tmp_path / f"x{ending}")
