"""Occlusion, Shapley, LIME and the SHAP family against slow formulas and captum on token ids."""

from __future__ import annotations

import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from masklens.errors import MethodError
from masklens.methods.perturbation import (
    Ridge,
    deeplift_shap,
    gradient_shap,
    lime,
    occlusion,
    seeded,
    shapley,
)

from .tiny_models import TEXTS

MASK = 4


def class_score(subject, text, keep, target, token=MASK):
    """The target's logit with the tokens that are not kept overwritten in the text."""
    batch = subject.encode([text])
    ids = torch.where(keep | batch.special[0], batch.inputs["input_ids"][0], torch.tensor(token))
    with torch.no_grad():
        return subject.module(**{**batch.inputs, "input_ids": ids[None]}).logits[0, target]


@pytest.mark.parametrize("window", [1, 3, 50])
def test_occlusion_is_the_mean_fall_over_windows(ask, subject, window):
    request = ask((0,))
    scores = occlusion(request, window=window, internal_batch_size=3)
    for row, text in enumerate(TEXTS):
        tokens, target = len(request.batch.tokens[row]), request.target[row]
        whole = class_score(subject, text, torch.ones(tokens).bool(), target)
        falls = [[] for _ in range(tokens)]
        for start in range(max(1, tokens - window + 1)):
            inside = range(start, min(tokens, start + window))
            keep = torch.tensor([t not in inside for t in range(tokens)])
            for t in inside:
                falls[t].append(whole - class_score(subject, text, keep, target))
        expected = torch.stack([torch.stack(f).mean() for f in falls]) * ~request.batch.special[row, :tokens]
        torch.testing.assert_close(scores[row, 0, :tokens].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2])
def test_occlusion_agrees_with_captum(ask, subject, window):
    from captum.attr import Occlusion

    request = ask((0,), texts=[TEXTS[2]], baselines="pad")
    scores = occlusion(request, window=window)
    inputs = request.batch.inputs
    special = request.batch.special
    oracle = Occlusion(
        lambda ids: (
            subject.module(
                input_ids=torch.where(special, inputs["input_ids"], ids),
                attention_mask=inputs["attention_mask"],
            ).logits
        )
    )
    expected = oracle.attribute(inputs["input_ids"], (window,), baselines=0, target=request.target)
    torch.testing.assert_close(scores[0].double(), (expected * ~special).double(), rtol=1e-4, atol=1e-5)


def test_occlusion_works_at_any_site(ask, subject):
    request = ask((3,), baselines="zero")
    scores = occlusion(request)
    row, token = 0, 2
    state = subject.states(request.batch, [3]).states[3].clone()
    state[row, token] = 0
    output = subject.run(request.batch, replace={3: state}).output
    fall = request.reference[row, request.target[row]] - output[row, request.target[row]]
    assert float(scores[row, 0, token]) == pytest.approx(float(fall), abs=1e-5)


def test_shapley_values_are_efficient(ask, subject):
    """Limiting case: they add up to the score of the whole text minus that with every token masked."""
    request = ask((0,))
    scores = shapley(request, n_samples=3)
    for row, text in enumerate(TEXTS):
        tokens, target = len(request.batch.tokens[row]), request.target[row]
        whole = class_score(subject, text, torch.ones(tokens).bool(), target)
        empty = class_score(subject, text, torch.zeros(tokens).bool(), target)
        assert float(scores[row, 0].sum()) == pytest.approx(float(whole - empty), abs=1e-4)


def test_shapley_samples_approach_the_mean_over_all_orders(ask, subject):
    request = ask((0,), texts=[TEXTS[3]])  # three words
    target = request.target[0]
    totals, orders = torch.zeros(5, dtype=torch.float64), list(permutations([1, 2, 3]))
    for order in orders:
        keep = torch.zeros(5).bool()
        for token in order:
            before = class_score(subject, TEXTS[3], keep, target)
            keep[token] = True
            totals[token] += class_score(subject, TEXTS[3], keep, target) - before
    scores = shapley(request, n_samples=400)
    torch.testing.assert_close(scores[0, 0].double(), totals / len(orders), rtol=0.1, atol=0.05)


def test_ridge_solves_the_weighted_normal_equations():
    torch.manual_seed(0)
    x, y, w = torch.randn(30, 4).double(), torch.randn(30, 1).double(), torch.rand(30, 1).double()
    model = Ridge(0.7)
    model.fit([(x[:20], y[:20], w[:20]), (x[20:], y[20:], w[20:])])
    b = model.representation().T
    intercept = ((w * (y - x @ b)).sum() / w.sum()).item()
    gradient = -2 * x.T @ (w * (y - x @ b - intercept)) + 2 * 0.7 * b
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)


def test_lime_finds_the_coefficients_of_a_linear_model(ask, planted):
    """Limiting case: the score is linear in the kept tokens, so the fit is exact but for its penalty."""
    scores = lime(ask((0,), on=planted), n_samples=200, penalty=1e-6)
    falls = occlusion(ask((0,), on=planted))
    torch.testing.assert_close(scores, falls, rtol=1e-3, atol=1e-3)
    assert falls[0, 0, 1].abs() > 0.1


def test_gradient_shap_agrees_with_captum(ask, subject):
    from captum.attr import GradientShap

    request = ask((1,), texts=[TEXTS[0]], baselines="zero")
    scores = gradient_shap(request, n_samples=6)
    state = subject.states(request.batch, [1]).states[1]
    oracle = GradientShap(lambda s: subject.run(request.batch.take([0] * len(s)), replace={1: s}).output)
    with seeded(request):
        expected = oracle.attribute(
            state, torch.zeros(2, *state.shape[1:]).double(), n_samples=6, target=request.target
        )
    torch.testing.assert_close(scores[0].double(), expected.sum(-1), rtol=1e-4, atol=1e-5)


class TanhReader(nn.Module):
    """A model whose only nonlinearity is one that captum's DeepLIFT knows."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.bend, self.head = embed, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)

    def forward(self, ids):
        return self.head(self.bend(self.mix(self.embed(ids))).sum(1))


def test_deeplift_shap_is_complete_where_captum_knows_the_nonlinearity(ask, planted):
    from masklens.subject import Subject
    from masklens.tap import Point

    net = TanhReader(planted.module.embed)
    subject = Subject.from_module(net, [Point(net.embed)], planted.task, planted._encode)
    request = ask((0,), on=subject, texts=TEXTS[:1])
    scores = deeplift_shap(request)
    with torch.no_grad():
        state = net.embed(request.batch.inputs["ids"])
        empty = subject.run(request.batch, replace={0: torch.zeros_like(state)}).output
    change = subject.task.score(request.reference, request.target) - subject.task.score(empty, request.target)
    torch.testing.assert_close(scores.sum((1, 2)), change, rtol=1e-4, atol=1e-4)


def test_deeplift_shap_of_a_transformer_agrees_with_captum(ask, subject, unchanged):
    from captum.attr import DeepLift

    unchanged(subject.module)
    request = ask((0,), texts=[TEXTS[1]], baselines="mask")
    scores = deeplift_shap(request)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = subject.module

        def forward(self, state):
            return subject.run(request.batch.take([0] * len(state)), replace={0: state}).output

    state = subject.states(request.batch, [0]).states[0]
    ids = request.batch.inputs["input_ids"]
    empty = subject.module.get_input_embeddings()(torch.where(request.batch.special, ids, MASK))
    expected = DeepLift(Whole()).attribute(state, empty.detach(), target=request.target)
    torch.testing.assert_close(scores[0].double(), expected.detach().sum(-1), rtol=1e-4, atol=1e-5)
    unchanged(subject.module)


@pytest.mark.parametrize("method", [occlusion, shapley, lime, gradient_shap, deeplift_shap])
def test_a_text_gets_the_same_result_alone_and_in_a_batch_and_global_seeds_are_left_alone(ask, method):
    torch.manual_seed(5), np.random.seed(5)
    state = torch.random.get_rng_state()
    whole = method(ask((0, 2)))
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.random.rand() == np.random.RandomState(5).rand()
    for row, text in enumerate(TEXTS):
        alone = method(ask((0, 2), texts=[text]))
        torch.testing.assert_close(whole[row, :, : alone.shape[2]], alone[0], rtol=1e-4, atol=1e-5)


def test_without_captum_the_error_says_what_to_install(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(MethodError, match="pip install captum"):
        shapley(ask((0,)))
    occlusion(ask((0,)))


@pytest.mark.parametrize(
    ("method", "options"), [(occlusion, {"window": 0}), (lime, {"drop": 1.0}), (shapley, {"n_samples": 0})]
)
def test_wrong_options_are_explained(ask, method, options):
    with pytest.raises(MethodError, match=next(iter(options))):
        method(ask((0,)), **options)
