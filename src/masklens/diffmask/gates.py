"""The paper's Hard Concrete distribution on [0, 1): a gate that is exactly 0 with positive probability.

A Binary Concrete variable s (temperature beta, location `logits`) is stretched to (gamma, 1) and clamped
at 0 (De Cao et al. 2020, appendix B; Louizos et al. 2018). There is no point mass at 1: only "exactly 0" and
"not 0" need to be told apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.2
GAMMA = -0.2


class HardConcrete(NamedTuple):
    """HardConcrete(logits): samples in [0, 1), P(0) = sigmoid(beta ln(-gamma) - logits)."""

    logits: Tensor
    temperature: float = TEMPERATURE

    @property
    def _shift(self) -> float:
        """beta ln(-gamma): where the stretched variable crosses 0, on the scale of the logits."""
        return self.temperature * math.log(-GAMMA)

    def rsample(self, uniform: Tensor) -> Tensor:
        """A sample that gradients pass through, from noise in (0, 1)."""
        number = torch.finfo(self.logits.dtype)
        below_one = 1 - number.eps / 2
        u = uniform.to(self.logits.dtype).clamp(number.tiny, below_one)
        s = ((u.log() - (-u).log1p() + self.logits) / self.temperature).sigmoid()
        return (s * (1 - GAMMA) + GAMMA).clamp(0, below_one)

    def log_prob_nonzero(self) -> Tensor:
        """log P(z != 0) = log sigmoid(logits - beta ln(-gamma))."""
        return F.logsigmoid(self.logits - self._shift)

    def prob_nonzero(self) -> Tensor:
        """P(z != 0): the expected L0 of the gate."""
        return torch.sigmoid(self.logits - self._shift)
