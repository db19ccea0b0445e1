"""The information bottleneck against Monte Carlo, a slow loop and a planted model."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_models import TEXTS
from torch.distributions import Normal, kl_divergence

from masklens.errors import MethodError
from masklens.methods.bottleneck import divergence_from_prior, information_bottleneck, own_statistics


def test_the_divergence_is_the_kl_between_the_two_normals():
    torch.manual_seed(0)
    alpha, state = torch.randn(2, 3), torch.randn(2, 3, 5)
    mean, std = torch.randn(5), torch.rand(5) + 0.5
    keep = alpha.sigmoid()[:, :, None]
    noisy = Normal(keep * state + (1 - keep) * mean, (1 - keep) * std)
    expected = kl_divergence(noisy, Normal(mean, std).expand(noisy.batch_shape)).mean(-1)
    torch.testing.assert_close(divergence_from_prior(alpha, (state - mean) / std), expected)


def test_own_statistics_leave_padding_out():
    state = torch.arange(24.0).reshape(2, 4, 3) ** 1.5
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    mean, std = own_statistics(state, valid)
    torch.testing.assert_close(mean[1, 0], state[1, :2].mean(0))
    torch.testing.assert_close(std[1, 0], state[1, :2].std(0, correction=0))


def test_steps_are_those_of_a_slow_loop_over_one_text(ask, subject):
    statistics = (torch.tensor(0.3), torch.tensor(1.5))
    scores = information_bottleneck(ask((2,)), n_steps=4, weight=3.0, lr=0.5, statistics=statistics)
    row = 1
    request = ask((2,), texts=[TEXTS[row]])
    state = subject.states(request.batch, [2]).states[2]
    draws, alphas = request.draws(16), torch.full((state.shape[1],), 5.0, requires_grad=True)
    optimizer = torch.optim.RMSprop([alphas], lr=0.5, centered=True)
    for _ in range(4):
        keep, noise = torch.sigmoid(alphas), 0.3 + 1.5 * next(draws)[0].double()
        z = torch.stack([k * h + (1 - k) * e for k, h, e in zip(keep, state[0], noise, strict=True)])
        logits = subject.run(request.batch, replace={2: lambda _, z=z: z[None]}).output
        prior = Normal(torch.tensor(0.3).double(), torch.tensor(1.5).double())
        kl = [
            kl_divergence(Normal(k * h + (1 - k) * 0.3, (1 - k) * 1.5), prior).mean()
            for k, h in zip(keep.double(), state[0], strict=True)
        ]
        loss = -logits.log_softmax(-1)[0, request.target[0]] + 3.0 * torch.stack(kl).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(scores[row, 0, : len(alphas)], alphas.detach().sigmoid(), rtol=1e-4, atol=1e-5)


def test_a_text_gets_the_same_result_alone_and_in_a_batch(ask):
    whole = information_bottleneck(ask((0, 3)), n_steps=5)
    for row, text in enumerate(TEXTS):
        alone = information_bottleneck(ask((0, 3), texts=[text]), n_steps=5)
        torch.testing.assert_close(whole[row, :, : alone.shape[2]], alone[0], rtol=1e-4, atol=1e-5)


def test_the_only_state_that_is_read_is_the_only_one_kept(ask, planted):
    """Limiting case: the planted model reads the second word alone, so every other can be noise."""
    request = ask((1,), on=planted)
    scores = information_bottleneck(request, n_steps=200, weight=0.1, statistics=(0.0, 1.0))[:, 0]
    for row, valid in enumerate(request.batch.valid):
        others = [0, *range(2, int(valid.sum()))]
        assert scores[row, 1] > 0.5 > scores[row, others].max()


def test_at_a_high_price_nothing_is_kept(ask):
    valid = ask().batch.valid
    assert (information_bottleneck(ask((1,)), n_steps=60, weight=1000.0)[:, 0][valid] < 0.3).all()


@pytest.mark.parametrize("statistics", [torch.zeros(16), {5: (0, 1)}, 3])
def test_wrong_statistics_are_explained(ask, statistics):
    with pytest.raises(MethodError, match="statistics"):
        information_bottleneck(ask((0,)), statistics=statistics)
