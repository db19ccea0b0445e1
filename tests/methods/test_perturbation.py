"""Occlusion, Shapley, LIME and the SHAP family against slow formulas and captum on token ids."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from tests.methods.tiny_models import TEXTS
from torch import nn

from masklens.errors import MethodError
from masklens.methods.perturbation import deeplift_shap, gradient_shap, lime, occlusion, ridge, shapley

PAD, MASK = 0, 4


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


def test_shapley_agrees_with_captum_on_the_same_orders(ask, subject):
    from captum.attr import ShapleyValueSampling

    request = ask((0,), texts=[TEXTS[0]])
    free = ~request.batch.special[0]
    orders = request.noise(3, 1, torch.rand)[0, :, free, 0].argsort(1)
    oracle = ShapleyValueSampling(scores_of_kept(subject, request))
    oracle.permutation_generator = lambda count, samples: orders.tolist()
    expected = oracle.attribute(torch.ones(1, int(free.sum())), n_samples=3)
    scores = shapley(request, n_samples=3)
    torch.testing.assert_close(scores[0, :, free], expected.float(), rtol=1e-4, atol=1e-5)


def scores_of_kept(subject, request):
    """The target's score of the only text from its free tokens, each 1 for kept, by writing mask tokens."""
    free, target = ~request.batch.special[0], request.target[0]

    def scores(features):
        keep = (~free).repeat(len(features), 1)
        keep[:, free] = features > 0.5
        return torch.stack([class_score(subject, request.batch.texts[0], k, target) for k in keep])

    return scores


def test_ridge_solves_the_weighted_normal_equations():
    torch.manual_seed(0)
    xs, ys, ws = torch.randn(2, 30, 4).double(), torch.randn(2, 30).double(), torch.rand(2, 30).double()
    found = ridge(xs, ys, ws, 0.7)[..., None]
    for x, y, w, b in zip(xs, ys[..., None], ws[..., None], found, strict=True):
        intercept = ((w * (y - x @ b)).sum() / w.sum()).item()
        gradient = -2 * x.T @ (w * (y - x @ b - intercept)) + 2 * 0.7 * b
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)


class LeastSquares:
    """Ridge regression of penalty 1 as least squares with one more row a coefficient, in captum's form."""

    def fit(self, train_data, **_):
        x, y, w = (torch.cat(parts).double() for parts in zip(*train_data, strict=True))
        root, one = w.reshape(-1, 1).sqrt(), torch.ones(len(x), 1).double()
        rows = torch.cat([root * torch.cat([x, one], 1), torch.eye(x.shape[1] + 1).double()[:-1]])
        right = torch.cat([root * y.reshape(-1, 1), torch.zeros(x.shape[1], 1).double()])
        self.solution = torch.linalg.lstsq(rows, right).solution
        return {}

    def representation(self):
        return self.solution[:-1].T


def test_lime_agrees_with_captum_on_the_same_samples(ask, subject):
    from captum.attr import LimeBase

    request = ask((0,), texts=[TEXTS[0]])
    free = ~request.batch.special[0]
    samples = iter((request.noise(25, 1, torch.rand)[0, :, free, 0] >= 0.3).float())
    oracle = LimeBase(
        scores_of_kept(subject, request),
        LeastSquares(),
        similarity_func=lambda whole, perturbed, sample, **_: sample.mean(),
        perturb_func=lambda whole, **_: next(samples)[None],
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda sample, whole, **_: sample,
        to_interp_rep_transform=None,
    )
    expected = oracle.attribute(torch.ones(1, int(free.sum())), n_samples=25)
    torch.testing.assert_close(lime(request)[0, :, free], expected.float(), rtol=1e-3, atol=1e-5)


def test_lime_finds_the_coefficients_of_a_linear_model(ask, planted):
    """Limiting case: the score is linear in the kept tokens, so the fit is exact but for its penalty."""
    scores = lime(ask((0,), on=planted), n_samples=200, penalty=1e-6)
    falls = occlusion(ask((0,), on=planted))
    torch.testing.assert_close(scores, falls, rtol=1e-3, atol=1e-3)
    assert falls[0, 0, 1].abs() > 0.1


def test_gradient_shap_agrees_with_captum_on_the_same_draws(ask, subject, monkeypatch):
    from captum.attr import GradientShap

    request = ask((1,), texts=[TEXTS[0]])
    scores = gradient_shap(request, n_samples=6)
    draws = torch.rand(6, 2, generator=request.generators()[0])
    state = subject.states(request.batch, [1]).states[1]
    ids = request.batch.inputs["input_ids"]
    emptied = replace(
        request.batch,
        inputs={**request.batch.inputs, "input_ids": torch.where(request.batch.special, ids, PAD)},
    )
    baselines = torch.cat([torch.zeros_like(state), subject.states(emptied, [1]).states[1]])
    monkeypatch.setattr(np.random, "choice", lambda kinds, size: (draws[:, 0] * kinds).long().numpy())
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: draws[:, 1].double().numpy())
    oracle = GradientShap(lambda s: subject.run(request.batch.take([0] * len(s)), replace={1: s}).output)
    expected = oracle.attribute(state, baselines, n_samples=6, target=request.target)
    torch.testing.assert_close(scores[0].double(), expected.sum(-1).double(), rtol=1e-4, atol=1e-5)


class TanhReader(nn.Module):
    """A model whose only nonlinearity is one that captum's DeepLIFT knows."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.bend, self.head = embed, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)

    def forward(self, ids):
        return self.head(self.bend(self.mix(self.embed(ids))).sum(1))


def test_deeplift_shap_is_complete_where_captum_knows_the_nonlinearity(ask, planted):
    from masklens.model.subject import Subject
    from masklens.model.tap import Point

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


def test_deeplift_shap_at_a_block_is_that_of_the_model_above_it(ask, subject):
    from captum.attr import DeepLift

    request = ask((3,), texts=[TEXTS[1]], baselines="zero")
    bert = subject.module.bert

    class Above(nn.Module):
        """The last block, and what follows it."""

        def __init__(self):
            super().__init__()
            self.block, self.pooler, self.head = bert.encoder.layer[2], bert.pooler, subject.module.classifier

        def forward(self, state):
            out = self.block(state)
            return self.head(self.pooler(out[0] if isinstance(out, tuple) else out))

    state = subject.states(request.batch, [3]).states[3]
    expected = DeepLift(Above()).attribute(state, torch.zeros_like(state), target=request.target)
    scores = deeplift_shap(request)
    torch.testing.assert_close(scores[0].double(), expected.detach().sum(-1), rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize(
    ("method", "options"), [(occlusion, {"window": 0}), (lime, {"drop": 1.0}), (shapley, {"n_samples": 0})]
)
def test_wrong_options_are_explained(ask, method, options):
    with pytest.raises(MethodError, match=next(iter(options))):
        method(ask((0,)), **options)
