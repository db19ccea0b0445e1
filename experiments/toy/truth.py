"""Attributions of the toy task's methods, and how far they are from the ground truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from masklens.attribution import Attribution
from masklens.diffmask.lens import DiffMask
from masklens.methods.explain import explain
from masklens.model.subject import Subject

from .digits import HIDDEN, Digits, encode
from .ground_truth import js, kl

MARGIN = 0.05
"""of masks over the hidden states"""
OPTIONS: dict[str, dict[str, Any]] = {
    "erasure": {"criterion": "argmax"},
    "integrated_gradients": {"n_steps": 500, "points": "linspace", "absolute": True},
    "information_bottleneck": {"n_steps": 500, "lr": 0.1, "weight": 10.0},
    "guan": {"n_steps": 500, "lr": 0.1, "weight": 0.001},
    "diffmask": {"steps": 600, "lr": 0.1, "margin": MARGIN},
}
"""the reference code's settings; Guan et al. with weight 1 over 1,000 examples summed, 0.001 for each"""


def keep_of(lens: DiffMask, data: Digits) -> np.ndarray:
    """P(kept) at each row of the lens: (rows, examples, length)."""
    batch = encode(data.texts())
    return lens.keep(lens.subject.states(batch).states).numpy() * batch.valid.numpy()


def scores_of(name: str, subject: Subject, train: Digits, data: Digits, site: int) -> np.ndarray:
    """One method's scores of all examples at a site: (examples, length), 0 at padding."""
    return padded(
        explained(name, subject, train, data.texts(), data.label.tolist(), site), data.digits.shape[1]
    )


def explained(
    name: str, subject: Subject, train: Digits, texts: Sequence[Any], labels: list[int], site: int
) -> list[Attribution]:
    options = dict(OPTIONS[name])
    if name == "information_bottleneck":
        options["statistics"] = position_statistics(subject, train, site, encode(texts).shape[1])
    # The reference code explains the gold label; the model's own differs in at most 1 of 100.
    return explain(subject, texts, name, target=labels, sites=[site], batch_size=1000, **options)


def position_statistics(subject: Subject, train: Digits, site: int, length: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the states per position and dimension, over the training set, padding included
    as in the reference code."""
    states = subject.states(encode(train.texts()), [site]).states[site][:, :length]
    return states.mean(0), states.std(0)


def padded(attributions: Sequence[Attribution], length: int) -> np.ndarray:
    rows = np.zeros((len(attributions), length))
    for row, a in zip(rows, attributions, strict=True):
        row[: len(a.tokens)] = a.scores[0]
    return rows


def against_truth(scores: np.ndarray, truth: Tensor) -> dict[str, float | None]:
    """Mean divergence from the even distribution over `truth`; examples without any such position are left
    out. An infinite mean is null."""
    has = truth.any(1).numpy()
    even, given = truth.numpy()[has].astype(float), scores[has]
    found = {"kl": float(kl(even, given).mean()), "js": float(js(even, given).mean())}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def figure_3e(keep: np.ndarray, test: Digits) -> dict[str, dict[str, float | None]]:
    """The embeddings know nothing of the query: all digits kept. The states do: only the query's."""
    return {
        "conditioned_on_input": against_truth(keep[0], test.valid),
        "conditioned_on_hidden": against_truth(keep[1], test.in_query),
    }


def linear_accuracy(subject: Subject, train: Digits, test: Digits) -> dict[str, float]:
    """How well a linear classifier tells query digits from others in the 2-d states, on the test set.

    "two_way": query digit or not, by one line. "three_way": first, second or no query digit.
    """

    def points(data: Digits) -> tuple[Tensor, Tensor]:
        states = subject.states(encode(data.texts()), [HIDDEN]).states[HIDDEN]
        match = data.digits[:, :, None] == data.query[:, None, :]  # (examples, length, 2)
        kind = match[..., 0] + 2 * match[..., 1].long()
        return states[data.valid], kind[data.valid]

    (x, kind), (x_test, kind_test) = points(train), points(test)
    return {
        "two_way": _linear(x, (kind > 0).long(), x_test, (kind_test > 0).long(), 2),
        "three_way": _linear(x, kind, x_test, kind_test, 3),
    }


def _linear(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, classes: int) -> float:
    weight = torch.zeros(classes, x.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def logits(points: Tensor) -> Tensor:
        return F.linear(points, weight[:, :-1], weight[:, -1])

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits(x), y)
        value.backward()
        return value

    optimizer.step(loss)
    return (logits(x_test).argmax(-1) == y_test).float().mean().item()
