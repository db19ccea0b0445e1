"""The registry: what is there, and what is said about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.tiny_models import TEXTS

import masklens
import tiny
from masklens.errors import MethodError
from masklens.methods.registry import METHODS, check_count, find, load_all

PAPERS = """diffmask decoded_gradcam gradcam gradient grad_x_input smoothgrad integrated_gradients attention
information_bottleneck guan erasure reinforce occlusion lime shapley gradient_shap deeplift_shap random"""


def test_every_method_of_both_papers_is_there():
    assert set(PAPERS.split()) <= set(masklens.methods())


def test_every_method_says_what_it_does_costs_and_needs():
    load_all()
    for method in METHODS.values():
        assert method.function.__doc__, method.name
        assert all([method.summary, method.cost, method.paper, method.needs]), method.name
        assert method.summary[0].isupper() and not method.summary.endswith("."), method.name


def test_a_method_that_is_none_has_a_hint_first():
    with pytest.raises(
        MethodError, match="^no method 'lyme'; did you mean 'lime'. `masklens methods` lists all$"
    ):
        find("lyme")
    with pytest.raises(MethodError, match="^no method 'zzzz'; `masklens methods` lists all$"):
        find("zzzz")


def test_counts_are_whole_numbers_of_at_least_1():
    check_count("n_steps", 1)
    check_count("n_steps", np.int64(3))
    for wrong in (0, True, 1.5, "5", None):
        with pytest.raises(
            MethodError, match=f"n_steps is {wrong!r}; it must be a whole number of at least 1"
        ):
            check_count("n_steps", wrong)


@pytest.mark.parametrize(
    "name",
    ["gradient", "gradcam", "attention", "guan", "integrated_gradients", "lime", "occlusion", "reinforce"],
)
def test_a_method_that_reads_the_baselines_says_which_it_has(name):
    method, subject = find(name), tiny.subject("bert")
    plain, other = (
        masklens.explain(subject, "a fast funny movie", name, baselines=given, **method.quick)[0].scores
        for given in (None, 7)
    )
    assert np.allclose(plain, other, atol=1e-7) is not bool(method.baseline)


def test_noise_depends_on_the_text_alone(ask):
    together, alone = ask().draws(3), ask(texts=[TEXTS[1]]).draws(3)
    for _ in range(10):
        whole, own = next(together), next(alone)
        assert torch.equal(whole[1, : own.shape[1]], own[0])
        assert not whole[1, own.shape[1] :].any()
