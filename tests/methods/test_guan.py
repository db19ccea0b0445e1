"""Guan et al.'s noise levels against a slow loop and a closed form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.methods.tiny_models import TEXTS

from masklens.errors import MethodError
from masklens.methods.guan import guan, squared_change


def test_steps_are_those_of_a_slow_loop_over_one_text(ask, subject):
    scores = guan(ask((1,)), n_steps=4, weight=0.7, lr=0.5, score="negative")
    row = 3
    request = ask((1,), texts=[TEXTS[row]])
    reference, states = subject.states(request.batch, [1])
    draws, raw = request.draws(16), torch.full((states[1].shape[1],), -5.0, requires_grad=True)
    optimizer = torch.optim.RMSprop([raw], lr=0.5, centered=True)
    for _ in range(4):
        sigma, noise = F.softplus(raw), next(draws)[0].double()
        noisy = torch.stack([h + s * e for h, s, e in zip(states[1][0], sigma, noise, strict=True)])
        logits = subject.run(request.batch, replace={1: lambda _, z=noisy: z[None]}).output
        change = sum((a - b) ** 2 for a, b in zip(logits[0], reference[0], strict=True))
        loss = change - 0.7 * sum(s.log() for s in sigma)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = -F.softplus(raw.detach())
    torch.testing.assert_close(scores[row, 0, : len(raw)], expected, rtol=1e-4, atol=1e-5)
    inverse = guan(ask((1,)), n_steps=4, weight=0.7, lr=0.5)
    torch.testing.assert_close(inverse, -1 / scores)


def test_a_text_gets_the_same_result_alone_and_in_a_batch(ask):
    whole = guan(ask((0, 3)), n_steps=5)
    for row, text in enumerate(TEXTS):
        alone = guan(ask((0, 3), texts=[text]), n_steps=5)
        torch.testing.assert_close(whole[row, :, : alone.shape[2]], alone[0], rtol=1e-3, atol=1e-3)


def test_the_only_state_that_is_read_bears_the_least_noise(ask, subject):
    """Limiting case: after the last block the head reads [CLS] alone."""
    request = ask((max(subject.sites),))
    scores = guan(request, n_steps=150)[:, 0]
    for row, valid in enumerate(request.batch.valid):
        assert scores[row, 0] > 2 * scores[row, 1 : int(valid.sum())].max()


def test_impossible_answers_do_not_count_as_change():
    inf = torch.inf
    change = squared_change(torch.tensor([[1.0, -inf], [0.0, 2.0]]), torch.tensor([[3.0, -inf], [0.0, 1.0]]))
    assert change.tolist() == [4.0, 1.0]
    assert squared_change(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])).tolist() == [4.0, 0.0]


def test_an_unknown_read_out_is_explained(ask):
    with pytest.raises(MethodError, match="'inverse'"):
        guan(ask((0,)), score="sigma")
