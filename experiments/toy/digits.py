"""The toy task of DiffMask (section 3.1, appendix C.1): are there more n than m among the digits?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from masklens.model.batch import Batch
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import BinaryClassification

LENGTH = 10
EXAMPLE = ("8 1", "8 8 3 1 3 9")
"""the paper's example: query (8, 1)"""
EMBEDDINGS, HIDDEN = 0, 1
"""the two sites: digit embeddings, and the 2-d states after the feed-forward layer"""


class Digits(NamedTuple):
    """A set of examples, padded with 0."""

    query: Tensor
    """(examples, 2)"""
    digits: Tensor
    """(examples, 10)"""
    valid: Tensor
    """(examples, 10) bool"""
    label: Tensor
    """(examples,) 1 where the first query digit occurs more often than the second"""

    def rows(self, index: Tensor) -> Digits:
        return Digits(*(part[index] for part in self))

    @property
    def in_query(self) -> Tensor:
        """(examples, 10): positions that hold a query digit."""
        match = self.digits[:, :, None] == self.query[:, None, :]
        return match.any(-1) & self.valid

    def texts(self) -> list[tuple[str, str]]:
        """The examples as (query, digits) pairs of strings."""
        pairs = zip(self.query.tolist(), self.digits.tolist(), self.valid.sum(1).tolist(), strict=True)
        return [(" ".join(map(str, q)), " ".join(map(str, d[:n]))) for q, d, n in pairs]


def generate(count: int, seed: int) -> Digits:
    """Two distinct query digits; each position holds one of them with probability 1/2; length 1 to 10."""
    rng = np.random.default_rng(seed)
    query = np.stack([rng.choice(10, size=2, replace=False) for _ in range(count)])
    weights = np.full((count, 10), 0.5 / 8)
    np.put_along_axis(weights, query, 0.25, axis=1)
    drawn = rng.random((count, LENGTH, 1))
    digits = (drawn > weights.cumsum(1)[:, None, :]).sum(-1).clip(max=9)
    lengths = rng.integers(1, LENGTH + 1, size=count)
    valid = np.arange(LENGTH)[None, :] < lengths[:, None]
    digits = np.where(valid, digits, 0)
    counts = [((digits == query[:, [i]]) & valid).sum(1) for i in (0, 1)]
    label = (counts[0] > counts[1]).astype(np.int64)
    return Digits(*(torch.from_numpy(x) for x in (query, digits, valid, label)))


class DigitCounter(nn.Module):
    """Embeddings, a feed-forward layer with 2-d output that sees the query, a GRU that counts."""

    def __init__(self, embedding: int = 64, hidden: int = 64) -> None:
        super().__init__()
        self.embed_query = nn.Embedding(10, embedding)
        self.embed_digit = nn.Embedding(10, embedding)
        self.feed_forward = nn.Sequential(nn.Linear(3 * embedding, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        self.counter = nn.GRU(2, hidden, batch_first=True)
        self.classify = nn.Linear(hidden, 1)

    def forward(self, query: Tensor, digits: Tensor, valid: Tensor) -> Tensor:
        """(examples, 2), (examples, length), (examples, length) -> (examples,) logits"""
        asked = self.embed_query(query).flatten(1)[:, None].expand(-1, digits.shape[1], -1)
        states = self.feed_forward(torch.cat([asked, self.embed_digit(digits)], -1))
        outputs, _ = self.counter(states)
        last = valid.long().sum(1) - 1  # the GRU is causal: padding after the last digit does not matter
        return self.classify(outputs[torch.arange(len(outputs)), last])[:, 0]


def encode(pairs: Sequence[tuple[str, str]]) -> Batch:
    """(query, digits) pairs of strings of digits to a Batch; the tokens are the digits."""
    queries = torch.tensor([[int(x) for x in query.split()] for query, _ in pairs])
    rows = [[int(x) for x in digits.split()] for _, digits in pairs]
    length = max(len(row) for row in rows)
    digits = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    valid = torch.arange(length)[None, :] < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(
        inputs={"query": queries, "digits": digits, "valid": valid},
        valid=valid,
        special=~valid,
        segments=torch.ones_like(digits),
        tokens=tuple(tuple(map(str, row)) for row in rows),
        offsets=tuple(tuple((2 * i, 2 * i + 1) for i in range(len(row))) for row in rows),
        texts=tuple(pairs),
        truncated=(False,) * len(rows),
    )


def train_model(train: Digits, test: Digits, seed: int, epochs: int = 50) -> DigitCounter:
    """Adam 1e-3, batches of 128, the last epoch of the best test accuracy (appendix C.1).

    The loss has the reference code's entropy term: 0.35 times the entropy of a categorical over the
    *batch's* logits, which keeps them from spreading and so sets the scale of the margin.
    """
    torch.manual_seed(seed)
    model = DigitCounter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, kept = -1.0, {}
    for _ in range(epochs):
        for index in torch.randperm(len(train.label)).split(128):
            batch = train.rows(index)
            logits = model(batch.query, batch.digits, batch.valid)
            entropy = torch.distributions.Categorical(logits=logits).entropy()
            loss = F.binary_cross_entropy_with_logits(logits, batch.label.float()) - 0.35 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = accuracy(model, test)
        if score >= best:
            best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return model


@torch.no_grad()
def accuracy(model: DigitCounter, data: Digits) -> float:
    logits = model(data.query, data.digits, data.valid)
    return ((logits > 0).long() == data.label).float().mean().item()


def subject_for(model: DigitCounter) -> Subject:
    """Site 0: the digits' embeddings; site 1: the 2-d states."""
    points = [Point(model.embed_digit), Point(model.feed_forward)]
    return Subject.from_module(model, points, BinaryClassification(["not more", "more"]), encode)
