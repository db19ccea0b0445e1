from __future__ import annotations

import numpy as np
import pytest

import tiny
from masklens import explain
from masklens.methods import batching
from masklens.methods.batching import even, groups_of, pairs


@pytest.mark.parametrize(
    ("count", "limit", "size"), [(50, 45, 25), (50, 50, 50), (7, 3, 3), (0, 4, 1), (9, 4, 3)]
)
def test_chunks_are_equal_and_within_the_limit(count, limit, size):
    assert even(count, limit) == size


def test_every_pair_comes_once_and_an_examples_steps_together():
    chunks = list(pairs(3, 4, 5))
    found = [(int(row), int(step)) for rows, steps in chunks for row, step in zip(rows, steps, strict=True)]
    assert found == [(row, step) for row in range(3) for step in range(4)]
    assert all(len(rows) <= 5 for rows, _ in chunks)


def test_groups_by_length():
    assert groups_of([5, 3, 5, 4], 0.0) == [[1], [3], [0, 2]]
    assert groups_of([10, 11, 12, 20, 22], 0.15) == [[0, 1], [2], [3, 4]]
    assert groups_of([], 0.15) == []


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion", "smoothgrad"])
def test_groups_of_nearly_one_length_give_the_same_scores(method, monkeypatch):
    """As on a GPU."""
    subject, texts = tiny.subject("bert"), [*tiny.SENTENCES, *tiny.TEXTS]
    apart = explain(subject, texts, method)
    monkeypatch.setitem(batching.PADDING, "cpu", 2.0)
    for a, b in zip(apart, explain(subject, texts, method), strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
