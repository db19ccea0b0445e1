"""Answers of every decoder family that is tested, explained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from tests import tiny

import masklens as ml
from masklens.errors import ModelError

PROMPT, ANSWER = "the plot is dull and the", " red car"
CLASSES = hf.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
SOURCED = hf.models.auto.modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
OWN = [name for name, family in tiny.FAMILIES.items() if "causal" in family.heads]
REFUSED = ("gemma3n_text", "reformer")
FURTHER = [
    name
    for name in tiny.LANGUAGE_MODELS
    if name in CLASSES and name not in SOURCED and name not in (*tiny._MASKED, *REFUSED)
]
MUTE = ("jamba", "xlstm")
"""whose tiny models cannot generate in transformers"""


def subject_of(family: str) -> ml.Subject:
    if family in OWN:
        return tiny.subject(family, "causal")
    return ml.Subject(tiny.language_model(family), tiny.sentencepiece())


def test_no_family_is_left_out():
    assert len(OWN) >= 7 and len(FURTHER) >= 50


@pytest.mark.parametrize("family", [*OWN, *FURTHER])
def test_two_tokens_of_an_answer(family):
    subject = subject_of(family)
    how = {"continuation": ANSWER} if family in MUTE else {"max_new_tokens": 2}
    for method in ("gradient", "occlusion"):
        made = ml.explain_generation(subject, PROMPT, method, **how)
        count = len(made.ids)
        assert made.scores.shape == (len(made), 1, count) and len(made) >= 1
        assert made.places == tuple(range(count - len(made), count))
        assert np.isfinite(made.scores).all() and (np.abs(made.scores).max((1, 2)) > 0).all()
        assert all((made.scores[i, :, place:] == 0).all() for i, place in enumerate(made.places))
        assert all(0 < probability <= 1 + 1e-6 for probability in made.probabilities)


@pytest.mark.parametrize("family", MUTE)
def test_a_family_that_cannot_generate_says_so(family):
    with pytest.raises(ModelError, match=r"cannot generate: .*; give the answer as continuation="):
        ml.explain_generation(subject_of(family), PROMPT, max_new_tokens=2)


@pytest.mark.parametrize(
    "family", ["gpt2", "llama", "gemma", "bloom", "gemma2", "gpt_oss", "mamba", "mixtral", "recurrent_gemma"]
)
def test_the_gradient_at_the_words_by_hand(family):
    """The norm of the gradient of the log-probability, for each token of the answer from a run of its own."""
    subject = subject_of(family)
    model, kept = subject.module, []
    made = ml.explain_generation(subject, PROMPT, "gradient", continuation=ANSWER, sites=["words"])

    def keep(module, given, output):
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    for i, place in enumerate(made.places):
        hook = model.get_input_embeddings().register_forward_hook(keep)
        logits = model(input_ids=torch.tensor([made.ids[:place]])).logits[0, -1]
        hook.remove()
        value = logits.log_softmax(-1)[made.ids[place]]
        (gradient,) = torch.autograd.grad(value, kept[-1])
        expected = gradient[0].norm(dim=-1).numpy()
        np.testing.assert_allclose(made.scores[i, 0, :place], expected, rtol=1e-3, atol=1e-5)
        assert made.probabilities[i] == pytest.approx(float(value.exp()), abs=1e-5)
