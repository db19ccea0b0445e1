"""The record of an answer: what it holds, files, pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests import tiny

import masklens as ml
from hostile import HOSTILE
from masklens.errors import FileError
from masklens.records.generation import row

MESSAGE = [{"role": "user", "content": "the plot is dull. the acting is worse."}]


@pytest.fixture(scope="module")
def subject():
    return tiny.subject("gpt2", "causal")


@pytest.fixture(scope="module")
def made(subject):
    return ml.explain_generation(
        subject, "the plot is dull . who lives", "grad_x_input", max_new_tokens=4, sites="all"
    )


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_files_give_back_what_was_saved(tmp_path, subject, made, ending):
    never = (None, *made.settled[1:])
    missing = np.array(made.scores)
    missing[0, 0, 0] = np.nan
    several = [
        made,
        replace(made, settled=never, settings={"n": 3, "name": "x"}),
        replace(made, logit_lens_sites=(), logit_lens=(), settled=()),
        replace(made, verification=tuple(ml.verify_generation(subject, made))),
        replace(made, scores=missing),
    ]
    path = ml.save(several, tmp_path / f"a.{ending}")
    back = ml.load(path)
    assert back == several and np.isnan(back[-1].scores[0, 0, 0])
    assert back[3].verification and back[3].step(1).verification == back[3].verification[1]
    assert ml.load(ml.save(made, tmp_path / f"b.{ending}")) == [made]


def test_attributions_are_saved_as_before(tmp_path, made):
    assert ml.load(ml.save(made.attributions(), tmp_path / "a.json")) == made.attributions()
    with pytest.raises(FileError, match="not both"):
        ml.save([made, made.step(0)], tmp_path / "a.json")
    with pytest.raises(FileError, match="use .parquet or .json"):
        ml.save(made, tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scores", [[[1.0]]]),
        ("scores", []),
        ("units", [10**6]),
        ("places", [0, 0, 0, 0]),
        ("ends", [10**6] * 4),
        ("offsets", [[5, 2]]),
        ("probabilities", [2.0] * 4),
        ("runners_up", [[{"token": 3, "probability": 0.1}]] * 4),
        ("turns", [{"role": "user", "start": 0, "end": 10**6}]),
        ("logit_lens", [[{"token": "a", "probability": 0.1}]] * 4),
        ("logit_lens_sites", []),
        ("settled", [99] * 4),
        ("verification", [{"site": 0}] * 4),
        ("verification", [None] * 4),
        ("steps", []),
        ("rather_than", [None]),
        ("rather_than", [-1] * 4),
        ("rather_than", ["red"] * 4),
        ("merge", "product"),
        ("sites", [-1]),
        ("answer", "\ud800"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(tmp_path, made, field, value):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{**row(made), field: value}]))
    with pytest.raises(FileError, match=r"row 1 of .* cannot be used"):
        ml.load(path)


def test_a_pair_in_a_file(tmp_path, subject):
    """The second token of "A rather than B" is read back; one that compares nothing is refused."""
    made = ml.explain_generation(
        subject, "the plot is", "grad_x_input", continuation=" the red car", target=("red", "dull")
    )
    for name in ("a.json", "a.parquet"):
        (back,) = ml.load(ml.save(made, tmp_path / name))
        assert back == made and back.rather_than == made.rather_than != (None,)
    (own,) = made.targets[0]
    for changed in ({"rather_than": [own]}, {"targets": [[own, own]]}):
        (tmp_path / "b.json").write_text(json.dumps([{**row(made), **changed}]))
        with pytest.raises(FileError, match="compares one token with another"):
            ml.load(tmp_path / "b.json")


def test_a_pair_is_shown_by_its_name(subject, made):
    pair = replace(made, rather_than=(0, None, None, None), pieces=("A rather than B", *made.pieces[1:]))
    assert pair.likeliest(0) == pair.step(0).prediction == "A rather than B"
    assert pair.likeliest(1) == made.likeliest(1) and "rather_than" not in repr(pair)


def test_a_file_without_a_field_is_refused(tmp_path, made):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{name: value for name, value in row(made).items() if name != "ids"}]))
    with pytest.raises(FileError, match="ids"):
        ml.load(path)


def test_shapes_are_checked(made):
    with pytest.raises(ValueError, match="scores have shape"):
        replace(made, scores=np.zeros((1, 1, 1)))
    with pytest.raises(ValueError, match="pieces"):
        replace(made, pieces=("a",))


def test_what_it_says_of_itself(made):
    assert "4 steps" in repr(made) and "grad_x_input" in repr(made)
    html = made._repr_html_()
    assert html.count("<details") == 4 and "<script" not in html


def test_a_hostile_answer_injects_nothing(tmp_path, made):
    nasty = "</script><script>alert(1)</script>\u202e"
    hostile = replace(made, pieces=(nasty,) * 4, tokens=(nasty,) * len(made.tokens), method=nasty)
    assert "<script>alert" not in hostile._repr_html_() and "\u202e" not in hostile._repr_html_()
    ml.report(hostile, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<script>alert" not in page and "\u202e" not in page


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.strip() and text != "\ud800"])
def test_hostile_prompts(subject, text):
    made = ml.explain_generation(subject, text[:40], max_new_tokens=2, units="sentences")
    assert made.text.startswith(text[:40]) and np.isfinite(made.scores).all()


def test_the_plot_has_a_row_a_step(made):
    ax = made.plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == list(made.steps)
    (drawn,) = (mesh.get_array() for mesh in ax.collections)
    assert drawn.shape == (4, made.places[-1]) and drawn.mask[0, made.places[0] :].all()
    assert made.plot(site=2).collections[0].get_array().shape == drawn.shape
