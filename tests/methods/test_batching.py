from __future__ import annotations

import pytest

from masklens.methods.batching import even, pairs


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
