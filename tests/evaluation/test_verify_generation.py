"""Verdicts on the steps of an answer: as `verify` gives them, and right where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import masklens as ml
import tiny
from masklens.errors import MethodError, SiteError

PROMPT = "the plot is dull . and the acting is worse , but who"


@pytest.fixture(scope="module")
def bigram():
    """A language model whose next token depends on the last one alone: its blocks add nothing."""
    model = tiny.model("gpt2", "causal")
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        model.transformer.wte.weight.mul_(20)
        for block in model.transformer.h:
            for layer in (block.attn.c_proj, block.mlp.c_proj):
                layer.weight.zero_()
                layer.bias.zero_()
    return ml.Subject(model, tiny.byte_bpe())


def explained(subject, units="tokens"):
    return ml.explain_generation(subject, PROMPT, "grad_x_input", max_new_tokens=4, units=units)


def pointing(made, sign):
    """The record with a score for the last unit that each step has seen, and small ones for the others."""
    scores = np.random.default_rng(0).random(made.scores.shape) / 10
    for i in range(len(made)):
        scores[i, :, made.seen(i) - 1] = sign
    return replace(made, scores=scores)


@pytest.mark.parametrize("units", ["tokens", "words"])
def test_the_one_token_that_matters_passes_and_its_opposite_fails(bigram, units):
    made = explained(bigram, units)
    right = ml.verify_generation(bigram, pointing(made, 1))
    assert all(proof.needed == 1 and proof.prediction_kept for proof in right)
    assert any(proof.passed for proof in right)  # one of the random orders may begin with the same token
    for i, proof in enumerate(right):
        assert proof.removed == tuple(range(made.seen(i) - 1)) and proof.tokens == made.seen(i)
        assert proof.probability_after == pytest.approx(proof.probability_before, abs=1e-4)
        assert proof.probability_before == pytest.approx(made.probabilities[i], abs=1e-5)
        assert proof.random_needed > 2 and proof.p_value < 0.3 and proof.p_reversed == 1
        assert proof.passed is (proof.p_value <= 0.1)
    wrong = ml.verify_generation(bigram, pointing(made, -1))
    assert all(proof.verdict == "not sufficient" and proof.needed == proof.tokens for proof in wrong)
    assert all(proof.p_value > 0.5 for proof in wrong)


def test_random_scores_seldom_pass(bigram):
    made = explained(bigram)
    draws = np.random.default_rng(1).random((5, *made.scores.shape))
    proofs = [proof for one in draws for proof in ml.verify_generation(bigram, replace(made, scores=one))]
    assert np.mean([proof.passed for proof in proofs]) <= 0.2


def test_equal_scores_are_ties(bigram):
    made = explained(bigram)
    flat = replace(made, scores=np.ones_like(made.scores))
    assert {proof.verdict for proof in ml.verify_generation(bigram, flat)} == {"ties"}


def test_a_fixed_share_stands_beside_random_choices_of_as_many(bigram):
    made = pointing(explained(bigram), 1)
    for proof in ml.verify_generation(bigram, made, keep=0.25):
        assert proof.needed == round(0.25 * proof.tokens) and proof.random_needed is None
        assert proof.prediction_kept and proof.probability_without < 0.01 < proof.random_without
    assert {proof.verdict for proof in ml.verify_generation(bigram, made, keep=0.25, control=False)} == {None}


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
@pytest.mark.parametrize("keep", [None, 0.5])
@pytest.mark.parametrize("prompt", [PROMPT, *tiny.TEXTS[:2]])
def test_a_step_is_verified_as_its_text_would_be(family, keep, prompt):
    """The prompt is a text of its own, whose prediction is the next token; and so is each beginning, if it is
    cut into the same tokens when it is read as text."""
    subject = tiny.subject(family, "causal")
    made = ml.explain_generation(subject, prompt, max_new_tokens=3)
    pairs = list(zip(ml.verify_generation(subject, made, keep=keep), made.attributions(), strict=True))
    alike = [pair for pair in pairs if subject.encode([pair[1].text]).tokens[0] == pair[1].tokens]
    assert alike[0] == pairs[0]
    for proof, one in alike:
        (alone,) = ml.verify(subject, [one], keep=keep)
        assert (proof.verdict, proof.needed, proof.removed) == (alone.verdict, alone.needed, alone.removed)
        assert proof.divergence == pytest.approx(alone.divergence, abs=1e-4)
        assert proof.p_value == alone.p_value and proof.random_needed == alone.random_needed


@pytest.mark.parametrize("other", ["dull", "plot", "Paris"])
def test_a_rather_than_b_is_verified_among_the_two_by_hand(other):
    """The units that stay are read for the difference of the two tokens alone."""
    subject = tiny.subject("gpt2", "causal")
    made = ml.explain_generation(
        subject, PROMPT, "grad_x_input", continuation=" the red car", target=("red", other)
    )
    a, b = made.targets[0][0], made.rather_than[0]
    assert b == subject.tokenizer(f" {other}", add_special_tokens=False)["input_ids"][0]
    (proof,) = ml.verify_generation(subject, made, keep=0.5)
    ids = torch.tensor([made.ids[: made.places[0]]])
    gone = torch.tensor([unit in proof.removed for unit in range(ids.shape[1])])
    filled = ids.masked_fill(gone, subject.tokenizer.unk_token_id)
    with torch.no_grad():
        whole, left = (
            subject.module(some, attention_mask=mask.long()[None]).logits[0, -1, [a, b]].softmax(-1)
            for some, mask in ((ids, torch.ones_like(gone)), (filled, ~gone))
        )
    assert proof.probability_before == pytest.approx(float(whole[0]), abs=1e-5)
    assert proof.probability_before == pytest.approx(made.probabilities[0], abs=1e-5)
    assert proof.probability_after == pytest.approx(float(left[0]), abs=1e-5)
    assert proof.divergence == pytest.approx(float((whole * (whole / left).log()).sum()), abs=1e-5)
    assert proof.prediction_kept is bool(whole.argmax() == left.argmax())


def test_the_verdict_on_a_rather_than_b_is_about_both(bigram):
    """The last token of the prompt decides; of two tokens that are never said the same one stays ahead."""
    made = ml.explain_generation(
        bigram, PROMPT, "grad_x_input", continuation=" the red car", target=("red", "dull")
    )
    (proof,) = ml.verify_generation(bigram, pointing(made, 1))
    assert proof.needed <= 1 and proof.prediction_kept and proof.divergence <= 0.1
    (wrong,) = ml.verify_generation(bigram, pointing(made, -1))
    assert wrong.verdict == "not sufficient" and wrong.p_value > 0.5 > proof.p_value
    swapped = replace(made, targets=((made.rather_than[0],),), rather_than=made.targets[0])
    (turned,) = ml.verify_generation(bigram, pointing(swapped, 1))
    assert turned.probability_before == pytest.approx(1 - proof.probability_before, abs=1e-5)
    assert turned.divergence == pytest.approx(proof.divergence, abs=1e-5)


def test_a_layer_by_its_name(bigram):
    made = ml.explain_generation(bigram, PROMPT, "grad_x_input", max_new_tokens=2, sites="all")
    named = ml.verify_generation(bigram, made, site="block 3", keep=0.5)
    assert named == ml.verify_generation(bigram, made, site=4, keep=0.5) and named[0].site == 4
    text = ml.explain(bigram, [PROMPT], "grad_x_input", sites="all")
    assert ml.verify(bigram, text, site="block 2", keep=0.5)[0].site == 3
    with pytest.raises(SiteError, match="no scores at block 9"):
        ml.verify_generation(bigram, made, site="block 9")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s, g: ml.verify(s, g), "to verify_generation"),
        (lambda s, g: ml.verify(s, [g]), "to verify_generation"),
        (lambda s, g: ml.verify(s, g.step(0)), r"give \[attribution\]"),
        (lambda s, g: ml.verify_generation(s, [g]), "call it for each answer"),
        (lambda s, g: ml.verify_generation(s, g.step(0)), r"verify\(subject, attributions\)"),
        (lambda s, g: ml.verify_generation(s, g.attributions()), r"verify\(subject, attributions\)"),
        (lambda s, g: ml.evaluate(s, g), "explained texts"),
        (lambda s, g: ml.evaluate(s, [g]), r"verify_generation\(subject, answer\)"),
        (lambda s, g: ml.evaluate(s, {"a": [g]}), r"verify_generation\(subject, answer\)"),
        (lambda s, g: ml.evaluate(s, {"a": g}), r"verify_generation\(subject, answer\)"),
        (lambda s, g: ml.evaluate(s, {"a": g.step(0)}), r"evaluate takes a list .* give \[attribution\]"),
    ],
)
def test_records_of_the_other_kind(bigram, call, said):
    with pytest.raises(MethodError, match=said):
        call(bigram, explained(bigram))


@pytest.mark.parametrize("keep", [-0.1, 1.5])
def test_a_share_that_is_none(bigram, keep):
    with pytest.raises(MethodError, match="between 0 and 1"):
        ml.verify_generation(bigram, explained(bigram), keep=keep)


def test_verify_takes_a_generator_and_says_what_it_does_not_take():
    subject = tiny.subject("bert")
    out = ml.explain(subject, ["dull", "a car"], "gradient")
    assert len(ml.verify(subject, (a for a in out), control=False)) == 2
    for given in (3, None, out[0], "dull", [out[0], 3]):
        with pytest.raises(MethodError, match=r"takes a list of attributions, not .*; give \[attribution\]"):
            ml.verify(subject, given)
