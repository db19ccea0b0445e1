"""Table 2 on a tiny GRU: optima against brute force, scores by hand, settling against slow search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from experiments.sst import gru as sst_gru
from experiments.sst import table2 as sst_table2
from experiments.sst.greedy import judge_of, pruned, settled
from experiments.sst.treebank import Sentence, parse

from masklens import explain

TREES = [
    "(4 (2 a) (4 (3 fast) (4 (3 funny) (2 movie))))",
    "(1 (2 the) (1 (2 plot) (1 (2 is) (0 dull))))",
    "(3 (2 the) (3 (2 movie) (3 (2 is) (4 (3 very) (4 funny)))))",
]
TEXTS = [parse(tree).text for tree in TREES]
MARGIN = 0.0005


@pytest.fixture(scope="module")
def subject():
    sentences = [parse(tree) for tree in TREES]
    vocabulary = sst_gru.Vocabulary.of(sentences)
    torch.manual_seed(1)
    model = sst_gru.SentimentGru(3 * torch.randn(1 + len(vocabulary.words), 6), hidden=5)
    return sst_gru.subject_for(model, vocabulary)


def divergence(subject, text: str, kept: tuple[int, ...]) -> float:
    """One set of words, through the module itself."""
    batch = subject.encode([text])
    model = subject.module
    vectors = model.embed(batch.inputs["words"]).clone()
    vectors[0, [i for i in range(vectors.shape[1]) if i not in kept]] = 0
    with torch.no_grad():
        whole, part = model(**batch.inputs), model.classify(model.gru(vectors)[0][:, -1])
    p, q = (x.softmax(-1).double() for x in (whole, part))
    return float((p * (p / q).log()).sum())


def all_smallest(subject, text: str) -> list[tuple[int, ...]]:
    words = len(text.split())
    for size in range(1, words + 1):
        sets = [c for c in combinations(range(words), size) if divergence(subject, text, c) <= MARGIN]
        if sets:
            return sets
    raise AssertionError


def test_optima_are_those_of_brute_force_and_of_the_erasure_method(subject):
    sizes = set()
    for text in TEXTS:
        found = sst_table2.smallest_sets(subject, text, MARGIN)
        slow = all_smallest(subject, text)
        assert sorted(tuple(np.flatnonzero(row).tolist()) for row in found) == slow
        (erased,) = explain(subject, text, "erasure", criterion="divergence", margin=MARGIN)
        assert erased.scores[0] == pytest.approx(found.mean(0))
        sizes.add(len(slow[0]))
    assert max(sizes) > 1  # the test means something


def test_the_closest_optimum_counts():
    optima = [[0, 1], [2, 3]]
    assert sst_table2.closest([2, 3], optima) == (1, 1, 1, 1)
    assert sst_table2.closest([1, 2, 3], optima) == (2 / 3, 1, 0.8, 0)
    assert sst_table2.closest([0], optima) == (1, 0.5, 2 / 3, 0)
    assert sst_table2.closest([4], optima) == (0, 0, 0, 0)


def test_scores_are_means_over_sentences():
    keep = torch.tensor([[True, False, False], [True, True, False]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    found = sst_table2.against(keep, valid, [[[0], [1]], [[1]]])
    expected = {"precision": 0.75, "recall": 1.0, "f1": (1 + 2 / 3) / 2, "optimality": 0.5, "l0": 2 / 3}
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_an_empty_mask_keeps_its_most_probable_word():
    valid = torch.tensor([[True, True, False], [True, True, True]])
    probability = torch.tensor([[0.1, 0.3, 0.0], [0.6, 0.2, 0.9]])
    assert sst_table2.rounded(probability, valid).tolist() == [[False, True, False], [True, False, True]]


def test_settled_masks_hold_the_margin_and_nothing_more_can_go(subject):
    batch = subject.encode(TEXTS)
    for seed in range(5):
        probability = torch.rand(batch.shape, generator=torch.Generator().manual_seed(seed))
        keep = settled(subject, batch, 0, torch.zeros(1), probability, MARGIN)
        for text, row in zip(TEXTS, keep.tolist(), strict=True):
            kept = tuple(i for i, one in enumerate(row) if one)
            assert kept and max(kept) < len(text.split())
            assert divergence(subject, text, kept) <= MARGIN + 1e-6
            fewer = [tuple(k for k in kept if k != drop) for drop in kept]
            assert len(kept) == 1 or all(divergence(subject, text, one) > MARGIN - 1e-6 for one in fewer)


def test_optima_are_left_as_they_are(subject):
    batch = subject.encode(TEXTS)
    judge = judge_of(subject, batch, 0, torch.zeros(1))
    keep = torch.zeros(batch.shape, dtype=torch.bool)
    for i, text in enumerate(TEXTS):
        keep[i, list(all_smallest(subject, text)[0])] = True
    assert torch.equal(pruned(judge, keep, MARGIN), keep)
    assert torch.equal(settled(subject, batch, 0, torch.zeros(1), keep.float(), MARGIN), keep)


def test_the_classifier_learns():
    """Sentences whose label is that of one word."""
    generator = np.random.default_rng(0)
    words, labels = ["bad", "so", "good"], {"bad": 0, "so": 2, "good": 4}
    made = []
    for _ in range(300):
        telling = words[generator.integers(3)]
        row = ["x", "y", telling, "z"]
        made.append(Sentence(tuple(generator.permutation(row).tolist()), (2,) * 4, labels[telling]))
    vocabulary = sst_gru.Vocabulary.of(made)
    torch.manual_seed(0)
    model = sst_gru.SentimentGru(torch.randn(1 + len(vocabulary.words), 8), hidden=16)
    vectors = model.embed.weight.clone()
    assert sst_gru.train_gru(model, vocabulary, made, made[:100], seed=0, epochs=8, lr=1e-2) > 0.95
    assert torch.equal(model.embed.weight, vectors)  # frozen


def test_padding_and_unknown_words(subject):
    together = subject.states(subject.encode(TEXTS)).output
    alone = torch.cat([subject.states(subject.encode([text])).output for text in TEXTS])
    assert torch.allclose(together, alone, atol=1e-6)
    assert subject.encode(["a riveting movie"]).inputs["words"][0, 1] == 0
