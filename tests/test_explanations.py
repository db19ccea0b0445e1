"""Lists of attributions: what a prompt, a notebook and pandas are given; texts of other libraries."""

from dataclasses import replace

import numpy as np
import pytest

import masklens as ml
from masklens.attribution import Explanations
from masklens.errors import TextError
from masklens.model.batch import as_texts
from records import make, make_pair

TEXTS = ["a fast , funny movie", "boring"]


def test_a_record_is_one_short_line():
    assert repr(make()) == "Attribution('good': 'positive', gradient, 3 tokens, 2 layers)"
    long = replace(make_pair(), text=("who?", "she won it " * 1000))
    assert len(repr(long)) < 160 and "who? | she won it" in repr(long)


def test_a_list_shows_its_first_texts():
    many = Explanations([make(text=f"text {i}") for i in range(7)])
    assert repr(many).splitlines()[0] == "7 attributions" and repr(many).splitlines()[-1] == "... 2 more"
    assert "text 4" in repr(many) and "text 5" not in repr(many)
    assert many._repr_html_().count('class="masklens"') == 5 and "2 more" in many._repr_html_()


def test_a_frame_has_every_score_once():
    made = Explanations([make(), make_pair(sites=3)])
    frame = made.to_pandas()
    assert len(frame) == sum(a.scores.size for a in made)
    cell = frame[(frame.text == 1) & (frame.site == 2) & (frame.token == "won")]
    assert cell.score.item() == made[1].scores[2, 4] and cell.layer.item() == "block 1"
    assert cell.segment.item() == 1 and not cell.special.item()
    assert frame.query("text == 0 and layer == 'words'").score.tolist() == made[0].scores[0].tolist()
    assert Explanations().to_pandas().empty


def test_what_is_loaded_has_a_frame_too(tmp_path):
    ml.save([make()], tmp_path / "x.json")
    assert ml.load(tmp_path / "x.json").to_pandas().score.max() == 4


def test_columns_series_arrays_and_generators_are_texts():
    pandas = pytest.importorskip("pandas")
    given = [pandas.Series(TEXTS), np.array(TEXTS), (text for text in TEXTS), dict.fromkeys(TEXTS).keys()]
    assert all(as_texts(one) == TEXTS for one in given)


def test_a_column_of_a_data_set_is_texts():
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"text": TEXTS})
    assert as_texts(made["text"]) == TEXTS
    with pytest.raises(TextError, match=r"give a column: dataset\['text'\]"):
        as_texts(made)
