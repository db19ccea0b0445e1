"""What a record says beside its scores, and that files keep it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from masklens.attribution import load, save
from masklens.errors import FileError
from masklens.reports.colours import scale
from masklens.reports.facts import answer_tokens, class_line, classes, completeness, sum_line
from masklens.reports.page import Entry, report_data
from masklens.reports.report import main_sets, main_targets
from masklens.tasks.classification import BinaryClassification, Classification, MultiLabel, Regression
from records import make, make_pair

TOLD = replace(
    make(scores=np.array([[0.5, 2.0, 0.75]])),
    probabilities={"negative": 0.0004, "positive": 0.9996},
    expected=(3.2,),
)
PAIR = replace(
    make_pair(), offsets=((0, 0), (0, 3), (3, 3), (0, 3), (4, 7), (8, 10), (10, 10)), answer=(4, 10)
)


def test_classes_are_told_the_most_probable_first():
    assert classes(TOLD)["classes"] == [["positive", 0.9996], ["negative", 0.0004]]
    assert class_line(TOLD) == "positive 1.00 · negative 0.0004"
    assert classes(make()) == {}
    many = replace(TOLD, probabilities={str(i): i / 100 for i in range(10)})
    assert class_line(many).endswith("4 0.04 · 4 more")


def test_sums_stand_beside_what_they_should_be():
    assert completeness(TOLD) == [(3.25, 3.2)]
    assert sum_line(TOLD) == "scores sum to 3.25; score of the text minus score of the baseline is 3.20"
    assert sum_line(make()) == ""


def test_the_answer_is_where_it_was_found_not_where_its_words_come_first():
    assert answer_tokens(PAIR) == [4, 5]
    assert answer_tokens(make_pair()) == []
    (text,) = report_data([Entry(PAIR, "a")])["texts"]
    assert text["layouts"][0]["answer"] == [4, 5]


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_files_keep_it_all(tmp_path, ending):
    made = [TOLD, PAIR, make()]
    assert load(save(made, tmp_path / f"x.{ending}")) == made


def test_an_answer_outside_of_the_text_is_refused(tmp_path):
    path = save([replace(PAIR, answer=(4, 999))], tmp_path / "x.json")
    with pytest.raises(FileError, match="answer"):
        load(path)


def test_probabilities_of_every_kind_of_classes():
    logits = torch.tensor([[1.0, 3.0]])
    one = Classification(["a", "b"]).probabilities(logits)[0]
    assert one["b"] == pytest.approx(1 / (1 + np.exp(-2)))
    assert sum(one.values()) == pytest.approx(1)
    several = MultiLabel(["a", "b"]).probabilities(logits)[0]
    assert several["a"] == pytest.approx(1 / (1 + np.exp(-1)))
    yes = BinaryClassification().probabilities(torch.tensor([2.0]))[0]
    assert yes == pytest.approx({"no": 1 / (1 + np.exp(2)), "yes": 1 / (1 + np.exp(-2))})
    assert Regression(["stars"]).probabilities(torch.tensor([[2.0]])) == [{}]


def test_special_tokens_do_not_set_the_scale():
    shown = scale(make(scores=np.array([[8.0, 2.0, -1.0]])))
    assert (shown.strongest, shown.values.tolist()) == (2.0, [[1.0, 1.0, -0.5]])
    assert scale(make(scores=np.array([[8.0, 0.0, -1.0]]))).strongest == 8.0
    by_site = scale(make(scores=np.array([[8.0, 2.0, -1.0], [4.0, 0.0, 0.0]])), per_site=True)
    assert by_site.values.tolist() == [[1.0, 1.0, -0.5], [1.0, 0.0, 0.0]]


def test_several_targets_of_a_text_stand_together_and_the_predicted_one_speaks_of_the_set():
    made = [replace(make(text=t), target=target) for target in ("negative", "positive") for t in ("a", "b")]
    entries = [Entry(a, "gradient") for a in made]
    texts = report_data(entries)["texts"]
    assert [[m["target"] for m in text["maps"]] for text in texts] == [["negative", "positive"]] * 2
    assert [e.attribution.target for e in main_targets(entries)] == ["positive"] * 2
    assert len(main_sets(entries)["gradient"]) == 2
    assert len(main_targets(entries[:2])) == 2  # where the prediction was not asked for
