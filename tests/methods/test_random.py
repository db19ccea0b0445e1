from __future__ import annotations

import torch
from tests.methods.tiny_models import TEXTS

from masklens.methods.random import random


def test_scores_depend_on_the_seed_and_the_text_only(ask):
    scores = random(ask((0, 1), seed=3))
    assert torch.equal(scores, random(ask((0, 1), seed=3)))
    assert not torch.equal(scores, random(ask((0, 1), seed=4)))
    alone = random(ask((0, 1), texts=[TEXTS[1]], seed=3))
    assert torch.equal(scores[1, :, : alone.shape[2]], alone[0])


def test_scores_are_uniform_on_the_unit_interval(ask):
    values = torch.cat([random(ask((0,), texts=TEXTS[:1], seed=s))[0, 0] for s in range(200)])
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.03 and abs(values.var() - 1 / 12) < 0.01
