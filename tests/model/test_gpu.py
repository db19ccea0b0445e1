"""On a GPU: the scores of a CPU, and batches that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import tiny
from masklens import Subject, explain

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")

MEGABYTES = 40
"""beside what the model takes"""


def subject(device: str) -> Subject:
    made = tiny.subject("bert")
    made.module.to(device)
    return made


@pytest.fixture
def little_memory() -> Iterator[None]:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + MEGABYTES * 2**20) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("method", ["gradient", "grad_x_input", "integrated_gradients", "gradcam", "random"])
def test_a_gpu_gives_the_scores_of_a_cpu(method: str) -> None:
    here, there = (subject(device) for device in ("cpu", "cuda"))
    for a, b in zip(explain(here, tiny.TEXTS, method), explain(there, tiny.TEXTS, method), strict=True):
        assert (a.tokens, a.prediction) == (b.tokens, b.prediction)
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-4)


def test_a_batch_that_does_not_fit_is_halved(little_memory: None) -> None:
    model = subject("cuda")
    texts = ["the plot is dull and the acting is worse . " * 2] * 4000
    torch.cuda.reset_peak_memory_stats()
    found = explain(model, texts, "grad_x_input", batch_size=4000)
    assert torch.cuda.memory_stats()["num_ooms"] > 0, "memory sufficed: nothing was tested"
    alone = explain(model, texts[:1], "grad_x_input")[0]
    assert all(np.allclose(one.scores, alone.scores, atol=1e-4) for one in found)
