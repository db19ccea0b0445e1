"""Attention against the weights read out by hand."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_models import TEXTS, make_tokenizer, tiny_config

from masklens.errors import MethodError
from masklens.methods.attention import attention
from masklens.model.subject import Subject


@pytest.fixture(scope="module")
def eager():
    """The same model with attention weights switched on from the start."""
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(tiny_config(attn_implementation="eager")).double().eval()


def by_hand(eager, subject, text):
    """Per block: (heads, n, n) of one text alone."""
    batch = subject.encode([text])
    with torch.no_grad():
        return [w[0] for w in eager(**batch.inputs, output_attentions=True).attentions]


@pytest.mark.parametrize("heads", ["max", "mean"])
def test_a_token_gets_the_heads_joined_and_the_queries_averaged(ask, subject, eager, heads):
    scores = attention(ask((2, 3, 4)), heads=heads)
    for row, text in enumerate(TEXTS):
        for k, weights in enumerate(by_hand(eager, subject, text)):
            joined = weights.max(0).values if heads == "max" else weights.mean(0)
            n = len(joined)
            expected = torch.stack([sum(joined[q, t] for q in range(n)) / n for t in range(n)])
            torch.testing.assert_close(scores[row, k, :n], expected)


def test_rollout_is_the_product_of_half_attention_and_half_identity(ask, subject, eager):
    scores = attention(ask((2, 4)), rollout=True)
    row = 2
    mixed = [0.5 * w.mean(0) + 0.5 * torch.eye(w.shape[-1]) for w in by_hand(eager, subject, TEXTS[row])]
    n = len(mixed[0])
    torch.testing.assert_close(scores[row, 0, :n], mixed[0].mean(0))
    torch.testing.assert_close(scores[row, 1, :n], (mixed[2] @ mixed[1] @ mixed[0]).mean(0))
    torch.testing.assert_close(scores.sum(-1), torch.ones_like(scores.sum(-1)))


def test_the_attention_implementation_is_put_back(ask):
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(tiny_config(attn_implementation="sdpa"))
    subject = Subject(model, make_tokenizer())
    attention(ask((2,), on=subject))
    assert model.config._attn_implementation == "sdpa"


def test_what_cannot_be_given_is_explained(ask):
    with pytest.raises(MethodError, match="'max' or 'mean'"):
        attention(ask((2,)), heads="min")
