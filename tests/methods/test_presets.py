"""The presets against their own definition, one text at a time."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_models import TEXTS

from masklens.methods.gradient import grad_x_input, integrated_gradients
from masklens.methods.perturbation import occlusion
from masklens.methods.presets import (
    _sum_beyond_rounding,
    allennlp_integrated,
    allennlp_simple,
    allennlp_smooth,
)
from masklens.methods.registry import find


def loss_gradient(subject, text, shift=0.0, scale=1.0, site=0):
    """State and gradient of the predicted label's cross-entropy at scale x state + shift."""
    batch = subject.encode([text])
    output, states = subject.states(batch, [site])
    leaf = (scale * states[site] + shift).requires_grad_()
    logits = subject.run(batch, replace={site: lambda _: leaf}).output
    torch.nn.functional.cross_entropy(logits, output.argmax(-1)).backward()
    return states[site][0], leaf.grad[0]


def shares(values):
    return values.abs() / values.abs().sum()


@pytest.mark.parametrize("row", [0, 3])
def test_allennlp_simple(ask, subject, row):
    state, slope = loss_gradient(subject, TEXTS[row])
    expected = shares((state * slope).sum(-1))
    torch.testing.assert_close(
        allennlp_simple(ask((0,)))[row, 0, : len(state)], expected, rtol=1e-4, atol=1e-6
    )


def test_allennlp_integrated(ask, subject):
    state, _ = loss_gradient(subject, TEXTS[2])
    mean = torch.stack([loss_gradient(subject, TEXTS[2], scale=k / 10)[1] for k in range(10)]).mean(0)
    expected = shares((state * mean).sum(-1))
    scores = allennlp_integrated(ask((0,)))[2, 0, : len(state)]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_a_number_is_no_zero():
    """The gradient at a zero embedding, where the integral begins, is not finite in some language models."""
    values = torch.tensor([[float("nan"), 1.0], [1.0, -1.0], [2.0, 1.0]])
    found = _sum_beyond_rounding(values)
    assert found[0].isnan() and found[1:].tolist() == [0, 3]


def test_allennlp_smooth(ask, subject):
    site, text = 2, TEXTS[1]
    state, _ = loss_gradient(subject, text, site=site)
    spread = 0.01 * (state.max() - state.min())
    noise = [spread * e.double() for _, e in zip(range(10), ask(texts=[text]).draws(16), strict=False)]
    mean = torch.stack([loss_gradient(subject, text, e, site=site)[1] for e in noise]).mean(0)
    scores = allennlp_smooth(ask((site,)))[1, 0, : len(state)]
    torch.testing.assert_close(scores, shares(mean.sum(-1)), rtol=1e-4, atol=1e-6)


def test_gradients_behind_a_layer_norm_add_up_to_zero(ask, subject):
    """Why allennlp_smooth says nothing at the word embeddings of BERT."""
    _, slope = loss_gradient(subject, TEXTS[1])
    assert slope.sum(-1).abs().max() < 1e-6 * slope.abs().max()
    assert not allennlp_smooth(ask((0,))).any()


def test_thermostat_presets_are_the_methods_with_its_settings(ask):
    same = torch.testing.assert_close
    same(find("thermostat_grad_x_activation").function(ask((1,))), grad_x_input(ask((1,))))
    same(
        find("thermostat_integrated").function(ask((1,))),
        integrated_gradients(ask((1,), baselines="pad"), n_steps=25),
    )
    same(find("thermostat_occlusion").function(ask((0,))), occlusion(ask((0,), baselines=0), window=3))
    same(
        find("thermostat_occlusion").function(ask((0,), baselines=7)),
        occlusion(ask((0,), baselines=7), window=3),
    )


def test_layer_presets_explain_the_output_of_the_embedding_layer(subject):
    layer = ["grad_x_activation", "integrated", "gradient_shap", "deeplift_shap"]
    assert all(find(f"thermostat_{name}").default_sites(subject) == (1,) for name in layer)
    assert all(
        find(f"thermostat_{name}").default_sites(subject) == (0,) for name in ("lime", "occlusion", "shapley")
    )
