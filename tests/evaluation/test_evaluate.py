"""One table from several sets of attributions; verify."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import masklens as ml
import planted
import tiny
from masklens.attribution import Attribution
from masklens.errors import FileError, MethodError
from masklens.evaluation.imported import read_attributions
from masklens.evaluation.table import Table, cell, cell_of_draws
from masklens.evaluation.verify import enough_to_hold
from masklens.model.masking import Baseline
from planted import sigmoid

TEXTS = ["fast plot .", "the plot is dull .", "enjoyable", "a fast dull plot ."]
LABELS = ["good", "bad", "good", "bad"]


@pytest.fixture(scope="module")
def made():
    return planted.subject()


@pytest.fixture(scope="module")
def true(made):
    """Scores that are the words' effect on the decision."""
    found = []
    for text in TEXTS:
        one = planted.attribution(made, text, planted.WEIGHTS)
        sign = 1 if one.prediction == "good" else -1
        found.append(Attribution(**{**vars(one), "scores": sign * one.scores}))
    return found


@pytest.fixture(scope="module")
def wrong(true):
    return [Attribution(**{**vars(a), "scores": -a.scores}) for a in true]


def test_the_true_explanation_wins(made, true, wrong):
    table = ml.evaluate(made, {"true": true, "wrong": wrong}, labels=LABELS, random_draws=5)
    assert set(table.rows) == {"true", "wrong", "random"}
    for metric in ("revealing", "hiding", "aopc_comprehensiveness", "log_odds", "loo_correlation"):
        assert table.best(metric) == "true", metric
        best = table["true"][metric]
        assert best.low <= best.value <= best.high
    assert table["random"]["hiding"].spread > 0
    assert len(table.curves["true"]["hiding"]) == len(table.curves["random"]["hiding"]) == 11
    assert table.curves["true"]["hiding"][0] == 1.0


def test_a_row_for_each_site(bert):
    several = ml.explain(bert, tiny.SENTENCES, "gradient", sites=[0, 2])
    table = ml.evaluate(bert, {"gradient": several}, metrics=["hiding"], random_draws=0)
    assert list(table.rows) == ["gradient@0", "gradient@2"]
    assert table.seconds["gradient@0"] == several.seconds > 0


def test_same_seed_same_table(made, true):
    one, two = (ml.evaluate(made, {"true": true}, random_draws=3, seed=4).to_json() for _ in range(2))
    assert one == two


def test_rationales_and_overlap(made, true):
    spans = [[(0, 4)], [(12, 16)], [(0, 9)], [(7, 11)]]
    metrics = ["token_f1", "iou_f1", "auprc", "overlap"]
    table = ml.evaluate(made, {"true": true}, metrics=metrics, rationales=spans, random_draws=0, top_words=1)
    assert table["true"]["token_f1"].value == 1
    assert table["true"]["overlap"].value == 0
    assert table.better["overlap"] == "lower"


def test_constant_scores_are_reported(made):
    flat = [planted.attribution(made, text, {}) for text in TEXTS]
    with pytest.warns(UserWarning, match="same score on every token"):
        table = ml.evaluate(made, {"flat": flat}, metrics=["hiding"], random_draws=0)
    assert "flat" in table.notes[0]


def test_errors_say_what_to_do(made, true):
    with pytest.raises(MethodError, match="no metric 'best'; there are revealing"):
        ml.evaluate(made, {"true": true}, metrics=["best"])
    with pytest.raises(MethodError, match="give rationales="):
        ml.evaluate(made, {"true": true}, metrics=["auprc"])
    with pytest.raises(MethodError, match="nothing to evaluate"):
        ml.evaluate(made, {})
    other = [Attribution(**{**vars(a), "target": "good", "prediction": "good"}) for a in true]
    with pytest.raises(MethodError, match="different targets"):
        ml.evaluate(made, {"a": true, "b": other})


def test_another_target_is_measured(made):
    """Explaining "bad" for a text that is good: what is measured is p(bad)."""
    one = planted.attribution(made, "fast dull enjoyable plot", {"dull": 1.0})
    asked = [Attribution(**{**vars(one), "target": "bad"})]
    table = ml.evaluate(made, {"bad": asked}, metrics=["comprehensiveness"], random_draws=0)
    # one of four tokens is 25%; the default share of 20% rounds to one token, dull
    expected = sigmoid(-0.5) - sigmoid(-3.5)
    assert table["bad"]["comprehensiveness"].value == pytest.approx(expected, abs=1e-6)


def test_verify_by_hand(made):
    """Half of four tokens: fast and enjoyable stay; the logit goes from 0.5 to 3."""
    one = planted.attribution(made, "fast dull enjoyable plot", {"fast": 2.0, "enjoyable": 1.0})
    (proof,) = ml.verify(made, [one], keep=0.5)
    p, q = sigmoid(0.5), sigmoid(3)
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert proof.divergence == pytest.approx(expected, abs=1e-6)
    assert proof.prediction_kept and proof.share_removed == 0.5
    assert [one.tokens[i] for i in proof.removed] == ["dull", "plot"]
    (by_word,) = ml.verify(made, [dataclasses.replace(one, tokens=("?",) * len(one.tokens))], keep=0.5)
    assert by_word.removed == () and by_word.share_removed == 0.5


def test_verify_a_lens_by_its_probabilities(made):
    scores = {"dull": 0.9, "fast": 0.4, "enjoyable": 0.3, "plot": 0.1}
    one = planted.attribution(made, "fast dull enjoyable plot", scores, method="diffmask", merge="max")
    (proof,) = ml.verify(made, [one], keep=0.5)
    assert not proof.prediction_kept and proof.share_removed == 0.75
    (proof,) = ml.verify(made, [one], keep=0.2)
    assert (
        proof.prediction_kept is False and proof.share_removed == 0.25
    )  # plot is gone: 2 - 3 + 1 = 0, a tie


def test_verify_with_a_baseline(made):
    """The weight of a removed word becomes the baseline's; [CLS] and [SEP] can be removed as well."""
    one = planted.attribution(made, "fast dull", {"fast": 0.9}, method="diffmask", merge="max")
    (proof,) = ml.verify(made, [one], keep=0.5, replace=torch.tensor([0.25]))
    p, q = sigmoid(-1), sigmoid(2 + 3 * 0.25)
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert proof.divergence == pytest.approx(expected, abs=1e-6)
    assert proof.share_removed == 0.75
    assert ml.verify(made, [one], keep=0.5, replace=Baseline(torch.tensor([0.25]))) == [proof]


@pytest.mark.parametrize("head", ["qa", "mlm", "tagging", "multi_label", "regression", "pairs"])
def test_verify_any_task(head):
    subject = tiny.subject("bert", head)
    texts = tiny.texts("bert", head)
    everything = ml.verify(subject, ml.explain(subject, texts, "gradient"), keep=1.0)
    half = ml.verify(subject, ml.explain(subject, texts, "gradient"), keep=0.3)
    assert all(p.prediction_kept and p.divergence < 1e-6 and p.share_removed == 0 for p in everything)
    assert all(p.divergence > 0 and p.share_removed > 0.4 for p in half)


def test_verify_finds_how_few_tokens_are_enough(made):
    """In the order fast, plot, enjoyable, dull the logit is 0, 2, 2.5, 3.5, 0.5, the divergence from the
    whole text 0.03 (a tie: another prediction), 0.22, 0.36, 0.69, 0."""
    scores = {"fast": 4.0, "plot": 3.0, "enjoyable": 2.0, "dull": 1.0}
    one = planted.attribution(made, "fast dull enjoyable plot", scores)
    (proof,) = ml.verify(made, [one], margin=0.7)
    assert proof.share_removed == 0.75 and proof.divergence == pytest.approx(0.219, abs=1e-3)
    assert proof.prediction_kept and [one.tokens[i] for i in proof.removed] == ["dull", "enjoyable", "plot"]
    (proof,) = ml.verify(made, [one], margin=0.3)  # two tokens, a half, are not within it: one is by luck
    assert proof.share_removed == 0 and proof.divergence == pytest.approx(0, abs=1e-6)
    assert proof.verdict == "not sufficient"


def test_a_guard_keeps_more_of_a_text_that_does_not_hold(made):
    """The same text and order."""
    scores = {"fast": 4.0, "plot": 3.0, "enjoyable": 2.0, "dull": 1.0}
    one = planted.attribution(made, "fast dull enjoyable plot", scores)
    assert ml.verify(made, [one], keep=0.5, guard=0.4) == ml.verify(made, [one], keep=0.5)  # it holds
    (proof,) = ml.verify(made, [one], keep=0.0, guard=0.3)  # a tie is another prediction: one more
    assert proof.opened == 1 and proof.share_removed == 0.75
    assert proof.divergence == pytest.approx(0.219, abs=1e-3) and proof.prediction_kept
    (proof,) = ml.verify(made, [one], keep=0.0, guard=0.3, same_prediction=False)  # within it as it is
    assert proof.opened == 0 and proof.share_removed == 1 and not proof.prediction_kept
    assert proof.divergence == pytest.approx(0.03, abs=5e-3)
    (proof,) = ml.verify(made, [one], keep=0.5, guard=0.3)  # two tokens and three do not hold: all four
    assert proof.opened == 2 and proof.share_removed == 0 and proof.removed == ()


def test_fewest_more_by_bisection():
    """Against trying every count: for texts that hold from a count on the two agree."""
    generator = np.random.default_rng(0)
    whole = generator.integers(1, 40, 200)
    said = (generator.random(200) * whole).astype(int)
    needed = (generator.random(200) * (whole + 1)).astype(int)
    tried = []

    def holds(rows, counts):
        tried.append(len(rows))
        assert (counts < whole[rows]).all()  # the whole text is never run
        return counts >= needed[rows]

    found = enough_to_hold(said, whole, said >= needed, holds)
    assert (found == np.maximum(said, needed)).all()
    assert sum(tried) / 200 < 4 and len(tried) <= 12


@pytest.mark.parametrize("head", ["qa", "pairs"])
def test_verify_within_a_margin_keeps_the_prediction(head):
    subject, texts = tiny.subject("bert", head), tiny.texts("bert", head)
    found = ml.explain(subject, texts, "gradient")
    tight, wide = ml.verify(subject, found, margin=1e-4), ml.verify(subject, found, margin=50.0)
    assert all(p.prediction_kept and p.divergence <= 1e-4 for p in tight)
    assert all(p.prediction_kept for p in wide)
    assert sum(p.share_removed for p in wide) > sum(p.share_removed for p in tight)


def test_verify_checks_what_it_is_given(made, true):
    with pytest.raises(MethodError, match="between 0 and 1"):
        ml.verify(made, true, keep=5)
    with pytest.raises(MethodError, match="0 or more"):
        ml.verify(made, true, margin=-1)
    with pytest.raises(MethodError, match="guard is -1"):
        ml.verify(made, true, guard=-1)
    assert ml.verify(made, []) == []


def test_imported_attributions(made, true, tmp_path):
    words = [a.text.split() for a in true]
    rows = [
        {"text": " ".join(some), "tokens": some, "scores": [planted.WEIGHTS.get(word, 0.0) for word in some]}
        for some in words
    ]
    (tmp_path / "theirs.json").write_text(json.dumps(rows))
    (tmp_path / "theirs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ml.save(true, tmp_path / "ours.json")
    assert read_attributions(tmp_path / "ours.json") == true
    theirs = read_attributions(tmp_path / "theirs.json")
    assert theirs == read_attributions(tmp_path / "theirs.jsonl")
    table = ml.evaluate(made, {"theirs": theirs, "ours": true}, metrics=["comprehensiveness"], random_draws=0)
    good = [i for i, a in enumerate(true) if a.prediction == "good"]
    same = ml.evaluate(
        made,
        {"theirs": [theirs[i] for i in good], "ours": [true[i] for i in good]},
        metrics=["comprehensiveness"],
        random_draws=0,
    )
    assert same["theirs"] == same["ours"]
    assert table["theirs"]["comprehensiveness"].value < table["ours"]["comprehensiveness"].value
    (tmp_path / "bad.json").write_text('[{"text": "a"}]')
    with pytest.raises(FileError, match="no 'tokens'"):
        read_attributions(tmp_path / "bad.json")


def test_intervals():
    values = np.random.default_rng(0).normal(size=400)
    found = cell(values)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert cell(np.array([1.0, np.nan, 3.0])).value == 2
    assert np.isnan(cell(np.array([np.nan])).value)
    drawn = cell_of_draws(np.array([[1.0, 1.0], [3.0, 3.0]]))
    assert drawn.value == 2 and drawn.spread == pytest.approx(np.sqrt(2))


def test_the_table_in_other_forms(made, true, tmp_path):
    pytest.importorskip("pandas")
    table = ml.evaluate(made, {"true": true}, metrics=["hiding"], random_draws=2)
    assert isinstance(table, Table)
    text = str(table)
    assert "hiding" in text and "random" in text and "±" in text
    data = json.loads(table.to_json(tmp_path / "t.json"))
    assert json.loads((tmp_path / "t.json").read_text()) == data
    assert data["rows"]["true"]["hiding"]["value"] == table["true"]["hiding"].value
    assert data["rows"]["true"]["seconds"] is None
    assert table.to_pandas().loc["true", "hiding"] == table["true"]["hiding"].value
