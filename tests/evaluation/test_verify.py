"""How few tokens suffice, and whether random explanations do as well: searches, levels, ties, verdicts."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import masklens as ml
import planted
import tiny
from masklens.attribution import load, save
from masklens.cli.demo import read_reviews
from masklens.evaluation.masking import Readings, Views
from masklens.evaluation.ranking import Ranking, ranking_site
from masklens.evaluation.sufficiency import (
    MARGIN,
    contrasts,
    fewest,
    log_odds,
    median_need,
    p_values,
    random_orders,
    suffices,
)
from masklens.evaluation.verify import Verifier, tied
from masklens.records.verification import LEVEL, control_line, from_record, verification_record
from masklens.reports.labels import proof_sentences
from records import make, proved

LONG = "the fast is a . the . a is enjoyable the . is a the . a is plot ."
"""2 + 1 + 0.5 for "good"; all other words say nothing"""
TRUE = {"fast": 2.0, "enjoyable": 1.0, "plot": 0.5}


class Known:
    """Views of texts for which it is known how many tokens of an order are needed."""

    def __init__(self, place, needed):
        self.place, self.needed, self.tried = place, needed, []

    def __len__(self):
        return len(self.needed)

    def read(self, rows, keep):
        self.tried.append(keep.sum(1))
        enough = keep.sum(1) >= self.needed[rows]
        return Readings(*[np.where(enough, value, 9.0) for value in (0.0, 1.0, 1.0, 0.0, 0.0)])


def test_the_search_finds_what_trying_every_number_finds():
    generator = np.random.default_rng(0)
    counts = generator.integers(1, 40, 100)
    removable = np.arange(40) < counts[:, None]
    ranking = Ranking.of(generator.random((100, 40)), removable)
    views = Known(ranking.place, (generator.random(100) * (counts + 1)).astype(int))
    assert (fewest(views, ranking) == views.needed).all()
    runs = sum(len(some) for some in views.tried) / 100
    assert runs < 5


def test_every_larger_number_that_is_tried_suffices_too():
    """Against a slow twin, on a model that is not monotone."""
    subject, texts = planted.transformer(), [LONG, "fast dull enjoyable plot is the a ."]
    views = Views(subject, texts)
    ranking = Ranking.of(np.random.default_rng(1).random(views.batch.shape), views.removable)

    def twin(i):
        def enough(k):
            keep = ranking.first(np.full(len(texts), k))[i : i + 1]
            return bool(suffices(views.read(np.array([i]), keep), margin)[0])

        high, low = int(views.counts[i]), -1
        while high and enough(high // 2):
            high //= 2
        low = high // 2 if high else -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    for margin in (1e-4, 1e-3, 1e-2):
        assert fewest(views, ranking, margin).tolist() == [twin(0), twin(1)]


def test_a_true_order_is_sufficient_and_its_reversal_is_not():
    made = planted.subject()
    one = planted.attribution(made, LONG, TRUE)
    (proof,) = ml.verify(made, [one], margin=0.02)
    assert proof.tokens == 20 and proof.needed == 2  # sigmoid(3) of sigmoid(3.5)
    assert proof.passed and proof.verdict == "sufficient" and proof.p_value <= LEVEL
    assert proof.probability_before == pytest.approx(planted.sigmoid(3.5), abs=1e-6)
    assert proof.probability_after == pytest.approx(planted.sigmoid(3.0), abs=1e-6)
    assert proof.share_needed == 0.1 and proof.random_share > 0.2
    spread = one.scores + np.linspace(0, 0.1, len(one.tokens))[None].astype(np.float32)
    (turned,) = ml.verify(made, [replace(one, scores=-spread)])
    assert not turned.passed and turned.p_value == 1.0 and turned.p_reversed <= LEVEL


def test_shuffled_scores_pass_at_the_stated_level():
    """The contrast of a random order among those of five others and all reversals: exactly 1 of 12."""
    generator = np.random.default_rng(0)
    drawn = generator.standard_t(3, (6, 20_000))
    p = p_values(drawn[0], drawn[1:])
    assert np.mean(p <= LEVEL) == pytest.approx(1 / 12, abs=0.006) and LEVEL >= 1 / 12
    assert np.mean(p <= 0.5) == pytest.approx(0.5, abs=0.01)
    assert p_values(np.zeros(1), np.zeros((5, 1))).tolist() == [1.0]  # ties count against it


def test_random_orders_of_a_model_pass_at_the_level():
    subject = planted.subject()
    words = [*planted.WEIGHTS, "a", "the", "is", "."]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, 16)) for _ in range(150)]
    verifier = Verifier(subject, texts)
    views = verifier.views("mask")
    passed = []
    for _ in range(4):
        ranking = Ranking.of(generator.random(views.batch.shape), views.removable)
        own = contrasts(views, [ranking])[0]
        passed.append(p_values(own, contrasts(views, random_orders(views))) <= LEVEL)
    assert 0.03 < np.mean(passed) < 0.13
    assert np.mean([proof.passed for proof in verifier.random()]) < 0.15


def test_the_same_random_orders_for_all_methods_and_companies():
    made = planted.subject()
    one, other = (
        planted.attribution(made, LONG, TRUE),
        planted.attribution(made, LONG, {"plot": 1.0, "fast": -1.0}),
    )
    more = planted.attribution(made, "a dull plot", {"dull": 1.0})
    (first,), (second,) = ml.verify(made, [one]), ml.verify(made, [other])
    assert first.random_needed == second.random_needed
    assert ml.verify(made, [more, one])[1] == first


def test_the_median_need_of_random_orders_by_hand():
    """One word decides: a random order needs its place, so half of the orders need about half of the text."""
    made = planted.subject()
    texts = ["the is a . " * k + "fast" + " the is a ." * k for k in (2, 3, 4)]
    views = Views(made, texts)
    found = median_need(views, random_orders(views), MARGIN)
    assert ((found > 0.2 * views.counts) & (found < 0.95 * views.counts)).all()
    slow = [
        np.median(
            [fewest(views, one)[i] for order in random_orders(views) for one in (order, order.reversed())]
        )
        for i in range(len(texts))
    ]
    assert np.abs(found - slow).max() <= 0.3 * views.counts.max()


def test_an_order_that_needs_more_tokens_than_random_ones_does_not_pass(monkeypatch):
    """Whatever its p-value: a tick beside "random orders need fewer" would contradict itself."""
    made = planted.subject()
    one = planted.attribution(made, LONG, TRUE)
    (proof,) = ml.verify(made, [one], margin=0.02)
    assert proof.passed and proof.needed == 2
    room = sys.modules[Verifier.__module__]
    for needed, passes in ((1.0, False), (1.5, True), (2.0, True)):
        monkeypatch.setattr(room, "median_need", lambda *_, n=needed: np.array([n]))
        (proof,) = ml.verify(made, [one], margin=0.02)
        assert proof.p_value <= LEVEL and proof.passed == passes
        assert passes or proof.verdict == "no better than random"


@pytest.mark.parametrize("merge", ["sum", "max"])
def test_a_prediction_that_needs_no_token_verifies_nothing(merge):
    """The empty text has the prediction already, so that no method can be right or wrong about it."""
    made = planted.subject()
    scores = {} if merge == "max" else {"is": 1.0, "the": -1.0}  # a lens that keeps nothing
    (proof,) = ml.verify(made, [planted.attribution(made, "the is a . the is a .", scores, merge=merge)])
    assert proof.verdict == "no token needed" and proof.needed == 0 and not proof.passed
    assert "nothing to verify" in proof_sentences(proof)


@pytest.mark.parametrize("keep", [None, 0.5])
def test_equal_scores_are_ties_and_never_sufficient(keep):
    made = planted.subject()
    (proof,) = ml.verify(made, [planted.attribution(made, LONG, {})], keep=keep)
    assert proof.verdict == "ties" and not proof.passed and proof.removed == ()


def test_equal_scores_at_the_cut_come_together():
    """As for words of several tokens; where all that is left is equal, there is nothing to verify."""
    scores = np.array([[3.0, 1.0, 1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    ranking = Ranking.of(scores, np.ones((2, 6), dtype=bool))
    assert ranking.untied(np.array([0, 0])).tolist() == [0, 0]
    assert ranking.untied(np.array([3, 1])).tolist() == [4, 1]
    assert tied(ranking, np.array([3, 1])).tolist() == [False, False]
    assert tied(ranking, np.array([5, 2])).tolist() == [True, True]


def test_a_lens_is_judged_by_its_own_mask_beside_random_masks():
    made = planted.subject()
    kept = {"fast": 0.9, "enjoyable": 0.8, "plot": 0.7}
    good = planted.attribution(made, LONG, kept, method="diffmask", merge="max")
    bad = planted.attribution(made, LONG, dict.fromkeys(("the", "is"), 0.9), method="diffmask", merge="max")
    everything = replace(good, scores=np.ones_like(good.scores))
    right, wrong, whole = ml.verify(made, [good, bad, everything])
    assert right.verdict == "sufficient" and right.needed == 3 and right.random_needed is None
    assert right.probability_without == pytest.approx(0.5, abs=1e-6) and right.random_without > 0.8
    assert wrong.verdict == "not sufficient" and not wrong.passed
    assert whole.verdict == "not sufficient" and whole.share_removed == 0
    with pytest.raises(ml.errors.MethodError, match="two calls"):
        ml.verify(made, [good, replace(bad, merge="sum")])


def test_the_layer_that_is_verified_is_the_deepest_one_that_ranks_words():
    """After the last block only [CLS] has a gradient. A mask may be the same on every word."""
    scores = np.array([[0.0, 0.3, 0.1, 0.0], [0.0, 0.2, 0.0, 0.0], [0.9, 0.0, 0.0, 0.0]])
    shape = {"special": (True, False, False, False), "sites": (0, 4, 7), "tokens": tuple("Cabc")}
    shape |= {"offsets": ((0, 0),) * 4, "segments": (0,) * 4, "text": "a b c"}
    found = replace(make(), **shape, scores=scores, merge="sum")
    flat = replace(found, scores=np.ones((3, 4)))
    assert ranking_site([found]) == ranking_site([flat, found]) == 4
    assert ranking_site([flat]) == 7
    assert ranking_site([replace(found, merge="max")]) == 7


def test_gradcam_at_all_layers_is_verified_where_words_have_scores():
    subject, texts = ml.Subject.default(), read_reviews()[0][:3]
    found = ml.explain(subject, texts, "gradcam")
    assert {proof.site for proof in ml.verify(subject, found)} == {6}
    nothing = {"ties", "no token needed"}
    assert {proof.verdict for proof in ml.verify(subject, found, site=7)} <= nothing
    assert not {proof.verdict for proof in ml.verify(subject, found)} <= nothing


def test_without_the_control_there_is_no_verdict():
    made = planted.subject()
    (proof,) = ml.verify(made, [planted.attribution(made, LONG, TRUE)], control=False)
    assert proof.verdict is None and not proof.passed and proof.needed == 1 and proof.random_share is None
    assert control_line([proof]) == ""


@pytest.mark.parametrize("head", ["qa", "mlm", "tagging", "multi_label", "regression", "pairs"])
def test_every_task_has_its_probability(head):
    subject, texts = tiny.subject("bert", head), tiny.texts("bert", head)
    proofs = ml.verify(subject, ml.explain(subject, texts, "gradient"))
    if head == "regression":
        said = [float(a.prediction) for a in ml.explain(subject, texts, "gradient")]
        assert [proof.probability_before for proof in proofs] == pytest.approx(said, rel=1e-3)
    else:
        assert all(
            0 < proof.probability_before <= 1 and 0 <= proof.probability_after <= 1 for proof in proofs
        )
    assert all(proof.prediction_kept and proof.divergence <= MARGIN for proof in proofs)


def test_log_odds():
    assert log_odds(np.log([0.5, 0.75])) == pytest.approx([0, np.log(3)])
    assert log_odds(np.array([0.0, -np.inf])).tolist() == [10, -10]


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_a_verification_is_saved_with_its_record(tmp_path, ending):
    made = [
        replace(make(), verification=proof) for proof in (proved(), proved(divergence=float("inf")), None)
    ]
    assert load(save(made, tmp_path / f"x.{ending}")) == made


@pytest.mark.parametrize(
    ("name", "value"),
    [("needed", 10**30), ("needed", -1), ("removed", [-1]), ("p_value", np.nan), ("divergence", np.nan)],
)
def test_a_tampered_verification_is_refused(name, value):
    row = verification_record(proved())
    assert from_record(row) == proved()
    with pytest.raises(ValueError):
        from_record(row | {name: value})


def test_the_packaged_model_passes_where_random_and_reversed_scores_fail():
    """The negative control: the test that a wrong explanation has to fail."""
    subject, (texts, _) = ml.Subject.default(), read_reviews()
    verifier = Verifier(subject, texts)
    found = ml.explain(subject, texts, "integrated_gradients", n_steps=12)
    (proofs,) = verifier.at_sites(found, [0])
    shuffled = [
        replace(a, scores=np.random.default_rng(i).permuted(a.scores, axis=1)) for i, a in enumerate(found)
    ]
    (mixed,) = verifier.at_sites(shuffled, [0])
    (turned,) = verifier.at_sites([replace(a, scores=-a.scores) for a in found], [0])
    passed = [np.mean([p.passed for p in some]) for some in (proofs, mixed, turned, verifier.random())]
    assert passed[0] >= 0.35 and max(passed[1:]) <= 0.15 and passed[2] == 0
    assert "reversed 0" in control_line(proofs)
    gradcam = ml.explain(subject, texts[:4], "gradcam", sites=[7])
    assert {p.verdict for p in ml.verify(subject, gradcam)} <= {"ties", "no token needed"}
