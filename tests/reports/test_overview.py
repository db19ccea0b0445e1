"""What a report says about a whole set of texts."""

from dataclasses import replace

import numpy as np
import pytest

from masklens.reports.overview import group_grid, kept_by_site, overview, telling_site, word_clouds
from records import make


def text(word, prediction, scores):
    made = make(tokens=("[CLS]", word, "[SEP]"), scores=np.array(scores), text=word)
    return replace(made, prediction=prediction, offsets=((0, 0), (0, len(word)), (len(word), len(word))))


def films(count=4):
    good = [text("good", "positive", [[0, 2, 0], [1, 0, 0]]) for _ in range(count)]
    return [*good, *(text("dull", "negative", [[0, 1, 0], [1, 0, 0]]) for _ in range(count))]


def test_words_of_each_class_at_a_site_that_speaks_of_them():
    assert telling_site(films()) == 0  # at site 1 all is left to [CLS]
    clouds = {cloud.title: cloud for cloud in word_clouds({"gradient": films()})}
    assert clouds["positive"].words == [("good", 8.0)]
    assert clouds["negative"].words == [("dull", 4.0)]
    assert clouds["positive"].note.startswith("gradient, words:")


def test_few_texts_and_texts_of_many_answers_have_no_clouds():
    assert not list(word_clouds({"a": films(2)}))
    answers = [replace(film, prediction=str(i)) for i, film in enumerate(films())]
    assert not list(word_clouds({"a": answers}))


def test_what_lenses_keep_by_site():
    keep = [replace(film, merge="max", scores=film.scores / 2) for film in films()]
    (chart,) = kept_by_site({"lens": keep, "gradient": films()})
    assert chart.series == {"lens": [pytest.approx(1.5 / 6), pytest.approx(1 / 6)]}
    assert chart.ticks == ["words", "embeddings"]
    assert kept_by_site({"gradient": films()}) == []


def test_scores_by_group_and_site():
    from masklens.analysis import by_label

    labels = [[None, "ADJ", None]] * 8
    grid = group_grid(by_label(films(), labels, "mean", special=False), "title")
    assert grid.columns == ["label", "tokens", "mean", "words", "embeddings"]
    assert grid.rows == [["ADJ", 8, pytest.approx(0.75), 1.5, 0.0]]
    assert grid.heat == [3, 4]
    one = group_grid(
        by_label([replace(a, sites=(0,), scores=a.scores[:1]) for a in films()], labels), "title"
    )
    assert one.columns[:3] == ["label", "tokens", "sum"] and one.heat == [2]


def test_one_text_is_no_set():
    assert overview({"a": films()[:1]}) == []
