"""The paper's Hard Concrete distribution on [0, 1): a gate that is exactly 0 with positive probability.

A Binary Concrete variable s (temperature beta, location `logits`) is stretched to (gamma, zeta) and clamped
at 0 (De Cao et al. 2020, appendix B; Louizos et al. 2018). With zeta = 1 there is no point mass at 1: only
"exactly 0" and "not 0" need to be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

TEMPERATURE = 0.2
GAMMA, ZETA = -0.2, 1.0


class HardConcrete(Distribution):
    """HardConcrete(logits): samples in [0, 1), P(0) = sigmoid(beta ln(-gamma/zeta) - logits).

    Everything is computed in float32 at least and given back in the type of `logits`.
    """

    arg_constraints = {"logits": constraints.real}
    support = constraints.half_open_interval(0.0, 1.0)
    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        temperature: float = TEMPERATURE,
        gamma: float = GAMMA,
        zeta: float = ZETA,
        validate_args: bool | None = None,
    ) -> None:
        if not (gamma < 0 < zeta <= 1 and temperature > 0):
            raise ValueError(
                f"gamma < 0 < zeta <= 1 and temperature > 0 are needed; got {gamma}, {zeta}, {temperature}"
            )
        (self.logits,) = broadcast_all(logits)
        self.temperature, self.gamma, self.zeta = temperature, gamma, zeta
        super().__init__(self.logits.shape, validate_args=validate_args)

    @property
    def _location(self) -> Tensor:
        return self.logits.float() if self.logits.dtype.itemsize < 4 else self.logits

    @property
    def _shift(self) -> float:
        """beta ln(-gamma/zeta): where the stretched variable crosses 0, on the scale of the logits."""
        return self.temperature * math.log(-self.gamma / self.zeta)

    def rsample(self, sample_shape: Sequence[int] = (), uniform: Tensor | None = None) -> Tensor:
        """A sample that gradients pass through; `uniform` may give the noise in (0, 1)."""
        location = self._location
        if uniform is None:
            uniform = torch.rand(
                self._extended_shape(torch.Size(sample_shape)), dtype=location.dtype, device=location.device
            )
        tiny = torch.finfo(location.dtype).tiny
        below_one = 1 - torch.finfo(location.dtype).eps / 2
        u = uniform.to(location.dtype).clamp(tiny, below_one)
        s = ((u.log() - (-u).log1p() + location) / self.temperature).sigmoid()
        stretched = s * (self.zeta - self.gamma) + self.gamma
        return (
            stretched.clamp(min=0, max=below_one * self.zeta).to(self.logits.dtype).clamp(max=self._largest)
        )

    @property
    def _largest(self) -> float:
        """The largest number below zeta in the type of the logits: the interval is open at its end."""
        return self.zeta * (1 - torch.finfo(self.logits.dtype).eps / 2)

    def log_prob_nonzero(self) -> Tensor:
        """log P(z != 0) = log sigmoid(logits - beta ln(-gamma/zeta))."""
        return F.logsigmoid(self._location - self._shift).to(self.logits.dtype)

    def log_prob_zero(self) -> Tensor:
        """log P(z = 0)."""
        return F.logsigmoid(self._shift - self._location).to(self.logits.dtype)

    def prob_nonzero(self) -> Tensor:
        """P(z != 0): the expected L0 of the gate."""
        return torch.sigmoid(self._location - self._shift).to(self.logits.dtype)

    def _position(self, value: Tensor) -> Tensor:
        """beta logit(s) - location for the s that gives `value`; its sigmoid is the cdf."""
        return self.temperature * ((value - self.gamma).log() - (self.zeta - value).log()) - self._location

    def cdf(self, value: Tensor) -> Tensor:
        """P(z <= value)."""
        value = value.to(self._location.dtype)
        inside = torch.sigmoid(self._position(value.clamp(0, self._largest)))
        cdf = torch.where(value < 0, 0.0, torch.where(value >= self.zeta, 1.0, inside))
        return cdf.to(self.logits.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log mass at 0, the log density on (0, zeta)."""
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(self._location.dtype)
        inner = value.clamp(torch.finfo(value.dtype).tiny, self._largest)
        x = self._position(inner)
        # d x / d value = beta (1 / (value - gamma) + 1 / (zeta - value)), and the cdf is sigmoid(x)
        slope = math.log(self.temperature * (self.zeta - self.gamma)) - (
            (inner - self.gamma).log() + (self.zeta - inner).log()
        )
        density = slope + F.logsigmoid(x) + F.logsigmoid(-x)
        return torch.where(value == 0, F.logsigmoid(self._shift - self._location), density).to(
            self.logits.dtype
        )
