"""Gradient methods against slow formulas and captum."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.methods.tiny_models import TEXTS

from masklens.errors import MethodError
from masklens.methods.gradient import (
    grad_x_input,
    gradcam,
    gradient,
    integrated_gradients,
    quadrature,
    slopes,
    smoothgrad,
)


def slow_slope(request, site, row, state=None):
    """State and gradient at one site of one text alone, by autograd through the recorded state."""
    subject = request.subject
    batch = subject.encode([request.batch.texts[row]])
    with torch.enable_grad():
        own = subject.states(batch, [site]).states[site]
        leaf = (own if state is None else state).clone().requires_grad_()
        output = subject.run(batch, replace={site: lambda _: leaf}).output
        output[0, request.target[row]].backward()
    return leaf.detach()[0], leaf.grad[0]


@pytest.mark.parametrize("sites", [(0, 1, 2, 3, 4), (3,)])
def test_every_site_from_one_pass_is_the_gradient_of_each_text_alone(ask, sites):
    request = ask(sites)
    found = slopes(request)
    for site in sites:
        for row in range(len(TEXTS)):
            state, slope = slow_slope(request, site, row)
            n = len(state)
            torch.testing.assert_close(found[site].state[row, :n], state)
            torch.testing.assert_close(found[site].gradient[row, :n], slope)


def test_scores_follow_from_state_and_gradient(ask):
    request = ask((0, 2))
    state, slope = slow_slope(request, 2, 1)
    n = len(state)
    product = (state * slope).sum(-1)
    torch.testing.assert_close(gradient(ask((0, 2)))[1, 1, :n], slope.pow(2).sum(-1).sqrt())
    torch.testing.assert_close(gradient(ask((2,)), norm="l1")[1, 0, :n], slope.abs().sum(-1))
    torch.testing.assert_close(gradient(ask((2,)), norm="sum")[1, 0, :n], slope.sum(-1))
    torch.testing.assert_close(grad_x_input(ask((2,)))[1, 0, :n], product)
    torch.testing.assert_close(gradcam(ask((2,)))[1, 0, :n], product.clamp(min=0))
    assert (product < 0).any()


def test_one_forward_pass_serves_gradient_and_prediction(ask, subject, monkeypatch):
    request, calls = ask((1, 2)), []
    run = subject.run
    monkeypatch.setattr(subject, "run", lambda *args, **more: (calls.append(1), run(*args, **more))[1])
    gradcam(request)
    request.reference  # noqa: B018
    assert len(calls) == 1


@pytest.mark.parametrize("site", [0, 1, 2, 4])
def test_integrated_gradients_are_complete(ask, subject, site):
    """Limiting case: the scores add up to the score at the state minus the score at the baseline."""
    baseline = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    request = ask((site,), baselines=baseline)
    scores = integrated_gradients(request, n_steps=200)
    state = subject.states(request.batch, [site]).states[site]
    empty = subject.run(request.batch, replace={site: baseline.expand_as(state).clone()}).output
    change = subject.task.score(request.reference, request.target) - subject.task.score(empty, request.target)
    torch.testing.assert_close(scores.double().sum((1, 2)), change, rtol=1e-4, atol=1e-4)


def test_sums_that_are_far_off_are_warned_of(ask):
    with pytest.warns(UserWarning, match="at words: scores of a text do not add up"):
        integrated_gradients(ask((0,)), n_steps=1, points="left")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrated_gradients(ask((0,), baselines="mask"))


@pytest.mark.parametrize("baselines", [None, "mask", "pad", 7])
def test_integrated_gradients_agree_with_captum(ask, subject, baselines):
    from captum.attr import LayerIntegratedGradients

    request = ask((0, 1), baselines=baselines)
    scores = integrated_gradients(request, n_steps=20, internal_batch_size=7)
    module, batch = subject.module, request.batch
    ids = batch.inputs["input_ids"]
    if baselines is None:
        return _agree_at_zero(scores, subject, request)
    token = {"mask": 4, "pad": 0}.get(baselines, baselines)
    empty = torch.where(batch.special, ids, torch.full_like(ids, token))
    layers = [module.bert.embeddings.word_embeddings, module.bert.embeddings]
    for s, layer in enumerate(layers):
        oracle = LayerIntegratedGradients(lambda i, m: module(input_ids=i, attention_mask=m).logits, layer)
        expected = oracle.attribute(
            ids,
            empty,
            target=request.target,
            additional_forward_args=(batch.inputs["attention_mask"],),
            n_steps=20,
        )
        close_where_valid(scores[:, s], expected.sum(-1), batch.valid)
    return None


def _agree_at_zero(scores, subject, request):
    from captum.attr import IntegratedGradients

    states = subject.states(request.batch, [0, 1]).states
    for s, site in enumerate((0, 1)):

        def forward(state, site=site):
            copies = len(state) // len(request.batch)
            rows = list(range(len(request.batch))) * copies
            return subject.run(request.batch.take(rows), replace={site: state}).output

        expected = IntegratedGradients(forward).attribute(states[site], target=request.target, n_steps=20)
        close_where_valid(scores[:, s], expected.sum(-1), request.batch.valid)


def close_where_valid(scores, expected, valid):
    torch.testing.assert_close(scores[valid].double(), expected[valid].double(), rtol=1e-4, atol=1e-5)


def test_integrated_gradients_do_not_depend_on_the_internal_batch_or_on_padding(ask):
    whole = integrated_gradients(ask((1,)), internal_batch_size=1000)
    torch.testing.assert_close(integrated_gradients(ask((1,)), internal_batch_size=3), whole)
    for row, text in enumerate(TEXTS):
        alone = integrated_gradients(ask((1,), texts=[text]))
        torch.testing.assert_close(whole[row, :, : alone.shape[2]], alone[0])


def test_linspace_points_and_absolute_value_are_the_papers_toy_setting(ask):
    scores = integrated_gradients(ask((2,)), n_steps=5, points="linspace", absolute=True)
    request = ask((2,))
    state, _ = slow_slope(request, 2, 1)
    mean = torch.stack([slow_slope(request, 2, 1, k / 4 * state[None])[1] for k in range(5)]).mean(0)
    expected = (state * mean).sum(-1).abs()
    torch.testing.assert_close(scores[1, 0, : len(state)].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("points", ["gausslegendre", "linspace", "trapezoid", "left", "middle", "right"])
def test_quadratures_integrate(points):
    places, weights = quadrature(points, 1000)
    assert float((weights * places**2).sum()) == pytest.approx(1 / 3, abs=2e-3)
    assert float(weights.sum()) == pytest.approx(1)


def test_smoothgrad_is_the_mean_gradient_at_noisy_states(ask):
    request = ask((1,))
    scores = smoothgrad(request, n_samples=3, noise=0.05, norm="sum")
    row, n = 2, len(request.batch.tokens[2])
    state, _ = slow_slope(request, 1, row)
    noise = torch.cat([e for _, e in zip(range(3), ask((1,), texts=[TEXTS[row]]).draws(16), strict=False)])
    spread = 0.05 * (state.max() - state.min())
    slow = [slow_slope(request, 1, row, (state + spread * e.double())[None])[1] for e in noise]
    expected = torch.stack(slow).mean(0).sum(-1)
    torch.testing.assert_close(scores[row, 0, :n].double(), expected, rtol=1e-5, atol=1e-5)


def test_smoothgrad_without_noise_is_the_gradient(ask):
    torch.testing.assert_close(smoothgrad(ask((2,)), noise=0.0), gradient(ask((2,))).float())


def test_smoothgrad_depends_on_the_seed_only(ask):
    first = smoothgrad(ask((0,), seed=1), noise=0.3)
    assert torch.equal(first, smoothgrad(ask((0,), seed=1), noise=0.3))
    assert not torch.allclose(first, smoothgrad(ask((0,), seed=2), noise=0.3))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (gradient, {"norm": "l3"}, "'l2', 'l1' or 'sum'"),
        (integrated_gradients, {"points": "simpson"}, "gausslegendre"),
        (integrated_gradients, {"n_steps": 0}, "at least 1"),
        (smoothgrad, {"n_samples": 0}, "at least 1"),
        (integrated_gradients, {"internal_batch_size": 0}, "at least 1"),
    ],
)
def test_wrong_options_are_explained(ask, method, options, message):
    with pytest.raises(MethodError, match=message):
        method(ask((0,)), **options)


@pytest.mark.parametrize("baselines", ["nothing", torch.zeros(7), {3: torch.zeros(16)}])
def test_wrong_baselines_are_explained(ask, baselines):
    with pytest.raises(MethodError, match="baseline"):
        integrated_gradients(ask((0,), baselines=baselines))
