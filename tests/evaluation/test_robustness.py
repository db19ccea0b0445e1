"""Checks that an explanation must pass; the checks themselves must tell good from bad."""

import numpy as np
import pytest
import torch

import masklens as ml
import planted
import tiny
from masklens.attribution import Attribution
from masklens.errors import MethodError
from masklens.evaluation import robustness as trust
from masklens.evaluation.agreement import kendall_tau, mid_ranks, rank_agreement, spearman


def with_scores(subject, texts, score):
    """Attributions whose scores are score(i, token, place)."""
    made = []
    for i, text in enumerate(texts):
        plain = planted.attribution(subject, text, {})
        scores = [[score(i, token, place) for place, token in enumerate(plain.tokens)]]
        made.append(Attribution(**{**vars(plain), "scores": np.array(scores)}))
    return made


def by_embedding(subject, texts):
    """Depends on the model's word embeddings alone."""
    table = subject.module.get_input_embeddings().weight.detach()
    batch = subject.encode(texts)
    tokens, ids = [t for row in batch.tokens for t in row], batch.inputs["input_ids"][batch.valid].tolist()
    norms = {token: float(table[i].norm()) for token, i in zip(tokens, ids, strict=True)}
    return with_scores(subject, texts, lambda _, token, place: norms[token])


def by_length(subject, texts):
    """Does not depend on the model at all."""
    return with_scores(subject, texts, lambda _, token, place: float(len(token)))


@pytest.mark.parametrize("kind", ["cascading", "independent"])
def test_randomisation_tells_what_an_explanation_depends_on(bert, kind, unchanged):
    unchanged(bert.module)
    stages = {s.name: s.agreement for s in trust.randomisation(bert, tiny.SENTENCES, by_embedding, kind)}
    unchanged(bert.module)
    assert list(stages) == ["head", "block 3", "block 2", "block 1", "embeddings"]
    assert all(stages[name] == pytest.approx(1) for name in list(stages)[:-1])
    assert stages["embeddings"] < 0.7
    same = trust.randomisation(bert, tiny.SENTENCES, by_length, kind)
    assert all(stage.agreement == pytest.approx(1) for stage in same)


def test_cascading_goes_on_and_independent_goes_back(bert):
    def blocks(subject):
        return [p.module.output.dense.weight[0, 0].item() for p in subject.blocks.values()]

    def seen(kind):
        found = []
        trust.randomisation(bert, ["a"], lambda s, t: found.append(blocks(s)) or by_length(s, t), kind)
        return [[a != b for a, b in zip(row, blocks(bert), strict=True)] for row in found[1:]]

    after = seen("cascading")
    assert after == [[False] * 3, [False, False, True], [False, True, True], [True] * 3, [True] * 3]
    after = seen("independent")
    assert after == [
        [False] * 3,
        [False, False, True],
        [False, True, False],
        [True, False, False],
        [False] * 3,
    ]


def test_randomisation_refuses_other_kinds(bert):
    with pytest.raises(MethodError, match="cascading"):
        trust.randomisation(bert, ["a"], by_length, "all")


def test_the_copy_has_its_own_weights(bert):
    other = trust.copy_of(bert)
    with torch.no_grad():
        next(other.blocks[2].module.parameters()).add_(1)
    batch = bert.encode(["a plot"])
    assert not torch.equal(bert.run(batch).output, other.run(batch).output)
    assert other.tokenizer is bert.tokenizer


def test_seed_stability(bert):
    texts = tiny.SENTENCES[:2]

    def by_seed(texts, seed):
        return with_scores(bert, texts, lambda i, token, place: (place * seed) % 7)

    noisy = trust.seed_stability(texts, by_seed, [1, 2, 3])
    same = trust.seed_stability(texts, lambda t, seed: by_length(bert, t), [1, 2])
    assert same == trust.Stability(pytest.approx(1), 0)
    assert noisy.agreement < 0.9 and noisy.deviation > 0
    with pytest.raises(MethodError, match="at least two"):
        trust.seed_stability(texts, lambda t, seed: by_length(bert, t), [1])


def test_padding_that_leaks_is_found(bert):
    def leaking(subject, texts):
        width = subject.encode(texts).shape[1]
        return with_scores(subject, texts, lambda i, token, place: place / width)

    assert trust.padding_sensitivity(bert, tiny.SENTENCES, leaking) > 0.1
    assert trust.padding_sensitivity(bert, tiny.SENTENCES, by_embedding) == 0


def test_white_space_that_matters_is_found(bert):
    def spaced(subject, texts):
        return with_scores(subject, texts, lambda i, token, place: place * len(texts[i]))

    assert trust.whitespace_sensitivity(bert, tiny.SENTENCES, spaced) > 0.01
    assert trust.whitespace_sensitivity(bert, tiny.SENTENCES, by_length) == 0
    assert trust.respaced("a b") == " a  b "


def test_explanations_that_cannot_be_ones_are_named(bert):
    flat = with_scores(bert, tiny.SENTENCES, lambda i, token, place: 2.0)
    assert trust.problems(flat) == [
        "at words, 5 of 5 texts have the same score on every token; give explain another layer (sites=)"
    ]
    placed = with_scores(bert, tiny.SENTENCES, lambda i, token, place: 1.0 / (1 + place))
    assert trust.problems(placed) == ["scores depend on the position alone, not on the text"]
    assert trust.problems(by_embedding(bert, tiny.SENTENCES)) == []
    with pytest.warns(trust.ExplanationWarning, match="mine: at words, 5 of 5"):
        trust.warn_of_problems("mine", flat)


def test_gradients_pass(bert):
    def explain(subject, texts):
        return ml.explain(subject, texts, "gradient")

    stages = trust.randomisation(bert, tiny.SENTENCES, explain)
    assert abs(stages[-1].agreement) < 0.6
    assert trust.padding_sensitivity(bert, tiny.SENTENCES, explain) < 1e-3
    assert trust.whitespace_sensitivity(bert, tiny.SENTENCES, explain) < 1e-3


def test_rank_correlations_by_hand():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    assert kendall_tau(x, y) == pytest.approx(4 / 6)  # 5 pairs agree, 1 does not
    assert spearman(x, y) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # ties: pairs (1,2) tied in x; tau-b = (5 - 0) / sqrt(5 * 6)
    assert kendall_tau(np.array([1.0, 1.0, 2.0, 3.0]), x) == pytest.approx(5 / np.sqrt(5 * 6))
    assert mid_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0, 2.5, 1]
    assert np.isnan(kendall_tau(np.ones(3), np.arange(3.0))) and np.isnan(
        spearman(np.ones(3), np.arange(3.0))
    )


def test_rank_agreement_needs_the_same_tokens(bert):
    with pytest.raises(MethodError, match="different tokens"):
        rank_agreement(by_length(bert, ["a plot"]), by_length(bert, ["the plot is"]))
