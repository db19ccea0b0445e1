"""A model whose explanation is known: one digit decides, all others are ignored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from masklens.model.batch import Batch
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import BinaryClassification

DECISIVE = 7


class CountSevens(nn.Module):
    """A logit of +4 if there is a 7, else -4; the embedding of every other digit is noise that is ignored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 6)
        with torch.no_grad():
            self.embed.weight[:, 0] = 0
            self.embed.weight[DECISIVE, 0] = 1
        self.body = nn.Identity()

    def forward(self, digits: Tensor, valid: Tensor) -> Tensor:
        states = self.body(self.embed(digits))
        return 8 * (states[..., 0] * valid).amax(1) - 4


def encode(texts) -> Batch:
    rows = [[int(c) for c in text] for text in texts]
    length = max(map(len, rows))
    valid = torch.tensor([[i < len(row) for i in range(length)] for row in rows])
    return Batch(
        inputs={"digits": torch.tensor([row + [0] * (length - len(row)) for row in rows]), "valid": valid},
        valid=valid,
        special=~valid,
        segments=torch.zeros_like(valid, dtype=torch.long),
        tokens=tuple(tuple(text) for text in texts),
        offsets=tuple(tuple((i, i + 1) for i in range(len(text))) for text in texts),
        texts=tuple(texts),
        truncated=(False,) * len(texts),
    )


def subject(model: nn.Module | None = None) -> Subject:
    """Of this model of digits, or of one that counts sevens."""
    model = model or CountSevens()
    return Subject.from_module(model, [Point(model.embed), Point(model.body)], BinaryClassification(), encode)


def texts(count: int, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        length = int(torch.randint(2, 7, (), generator=generator))
        made.append("".join(str(int(d)) for d in torch.randint(0, 10, (length,), generator=generator)))
    return made
