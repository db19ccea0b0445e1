"""A model with two pieces of evidence: a 7 says yes, a 3 says no, and without either it is undecided.

What has to be kept is known: the 7 or the 3 of a text. But a baseline that imitates a 3 lets a lens keep
nothing of texts with a 3, while a 7 is loud enough to be heard beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sevens
from masklens.model.subject import Subject


class SevenVersusThree(nn.Module):
    """A logit of +8 for a 7 and of -4 for a 3; the embeddings of other digits are noise that is ignored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 6)
        with torch.no_grad():
            self.embed.weight[:, :2] = 0
            self.embed.weight[7, 0] = self.embed.weight[3, 1] = 1
        self.body = nn.Identity()

    def forward(self, digits: Tensor, valid: Tensor) -> Tensor:
        seen = (self.body(self.embed(digits)) * valid[..., None]).amax(1)  # (examples, width)
        return 8 * seen[:, 0] - 4 * seen[:, 1]


class SevenUnlessThree(SevenVersusThree):
    """A 7 says yes, but not beside a 3: a text with both needs neither, which none of its digits can tell by
    itself."""

    def forward(self, digits: Tensor, valid: Tensor) -> Tensor:
        seen = (self.body(self.embed(digits)) * valid[..., None]).amax(1)
        return 8 * seen[:, 0] * (1 - seen[:, 1]) - 4


def subject() -> Subject:
    return sevens.subject(SevenVersusThree())


def texts(count: int, seed: int = 0) -> list[str]:
    """Each with either a 7 or a 3, in turn."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = int(torch.randint(3, 7, (), generator=generator))
        digits = ["01245689"[int(i)] for i in torch.randint(0, 8, (length,), generator=generator)]
        digits[int(torch.randint(0, length, (), generator=generator))] = "73"[number % 2]
        made.append("".join(digits))
    return made
