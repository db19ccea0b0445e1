"""What additive scores should sum to is known, for each text and site, beside what they do sum to."""

import numpy as np
import pytest
from tests.methods.tiny_models import TEXTS

from masklens.methods.explain import explain

ADDITIVE = {
    "integrated_gradients": {"n_steps": 200},
    "shapley": {"n_samples": 2},
    "gradient_shap": {"n_samples": 2},
    "deeplift_shap": {},
}


@pytest.mark.parametrize("method", ["integrated_gradients", "shapley"])
def test_the_scores_sum_to_what_is_expected(subject, method):
    """From pad tokens. A state of zeros is no good start: LayerNorm jumps there, and no integral sees it."""
    for found in explain(subject, TEXTS, method, sites=[0, 2], baselines="pad", **ADDITIVE[method]):
        np.testing.assert_allclose(found.scores.sum(1), found.expected, atol=2e-3)
        assert np.abs(found.expected).max() > 0.01  # it is not that all are zero


@pytest.mark.filterwarnings("ignore:integrated_gradients at")
def test_few_steps_miss_the_sum_and_the_record_tells(subject):
    rough = explain(subject, TEXTS, "integrated_gradients", sites=[1], n_steps=1, points="left")
    exact = explain(subject, TEXTS, "integrated_gradients", sites=[1], n_steps=200)
    assert [a.expected for a in rough] == [a.expected for a in exact]
    assert max(abs(a.scores.sum() - a.expected[0]) for a in rough) > 0.02


@pytest.mark.parametrize("method", ADDITIVE)
def test_a_text_has_the_same_expectation_alone_and_in_a_batch(subject, method):
    together = explain(subject, TEXTS, method, sites=[0, 1], **ADDITIVE[method])
    for text, one in zip(TEXTS, together, strict=True):
        (alone,) = explain(subject, [text], method, sites=[0, 1], **ADDITIVE[method])
        np.testing.assert_allclose(alone.expected, one.expected, atol=1e-5)
    assert len({a.expected for a in together}) > 1


def test_another_baseline_is_another_expectation(subject):
    by_baseline = [explain(subject, TEXTS[:1], baselines=kind)[0].expected for kind in ("zero", "pad")]
    assert by_baseline[0] != pytest.approx(by_baseline[1], abs=1e-4)


@pytest.mark.parametrize("method, options", [("lime", {}), ("integrated_gradients", {"absolute": True})])
def test_methods_that_are_not_additive_expect_nothing(subject, method, options):
    assert explain(subject, TEXTS[:1], method, **options)[0].expected == ()
