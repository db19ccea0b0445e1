"""What holds the margin of Eq. 2.

**A lens.** Near its optimum a gate compares what its token is worth with a price that all tokens share, so
the Lagrangian multiplier acts on all gates of a row alike: as a bias of their logits. `Offsets` moves that
bias directly. It watches the divergence of *hard* masks, the ones a user gets. While there is room under the
margin the bias falls and gates close one after the other, the least needed first; over the margin it rises,
twice as fast. Opening gates this way takes no gradient, so no row can be stuck with its gates shut.

The bias says how many tokens stay, so the gate networks have to learn only which. `Prices` see to it: what a
kept token costs is set so that the two terms of the loss, averaged over tokens, push the gates of a row
neither open nor shut. A token that is needed more than the average then opens, the others close.

**A single text** has no such freedom (every token has a logit of its own), so the usual multiplier serves:
`Multipliers` climb by gradient ascent while the margin is violated and fall while it is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .networks import LIMIT, Probe

AIM = 0.9
"""the share of the margin that training uses, so that texts it never saw stay within the margin too"""
TRAVEL = 20.0
"""how far a bias can fall over a whole fit"""
OPENING = 2.0
"""how much faster a bias can rise than fall"""
MEMORY = 256
"""over how many hard-masked texts the divergence is averaged"""


class Offsets:
    """The biases of a probe's gates, moved so that the hard masks of each row stay at the margin."""

    def __init__(self, probe: Probe, margin: float, steps: int, hard_texts: int) -> None:
        self.probe, self.aim, self.speed = probe, AIM * margin, TRAVEL / steps
        self.memory = max(0.0, 1 - hard_texts / MEMORY)
        device = probe.gate(0).bias.device
        self.divergence = torch.full(
            (len(probe.rows),), self.aim, device=device, dtype=torch.float32
        )  # running mean

    @torch.no_grad()
    def update(self, hard: Tensor, rate: float) -> None:
        """From the step's divergence under hard masks, (rows,); `rate` is the share of the full speed."""
        self.divergence.lerp_(hard, 1 - self.memory)
        violation = (self.divergence / self.aim - 1).clamp(max=OPENING)  # at least -1
        for bias, moved in zip(self.probe.biases, (rate * self.speed * violation).unbind(), strict=True):
            bias.add_(moved).clamp_(-LIMIT, LIMIT)


class Prices:
    """What a row's loss counts for a text kept whole, beside a divergence as large as the margin (WEIGHT)."""

    LEAST = 1.0
    """also where nothing seems to be needed, a kept token costs something"""
    MEMORY = 0.99
    """of the running sums, a step"""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.need = torch.zeros(rows, device=device, dtype=torch.float32)
        self.slope = torch.zeros(rows, device=device, dtype=torch.float32)

    @property
    def values(self) -> Tensor:
        """(rows,)"""
        return (self.need / self.slope.clamp(min=1e-6)).clamp(min=self.LEAST)

    @torch.no_grad()
    def update(self, need: Tensor, slope: Tensor) -> None:
        """From one step: how fast the divergence term falls as all gates open, and how fast the share of
        tokens kept grows, (rows,) each."""
        self.need.mul_(self.MEMORY).add_(need)
        self.slope.mul_(self.MEMORY).add_(slope)


class Multipliers:
    """One Lagrangian multiplier for each of several problems that share nothing (Eq. 3)."""

    RATE, LARGEST = 0.1, 200.0
    """as in the published code, whose multipliers stay within [0, 200]"""
    MOST = 10.0
    """a violation counts for at most so many margins"""
    LEAST_RAISED = 3.0

    def __init__(self, count: int, margin: float, device: torch.device) -> None:
        self.margin, self.values = margin, torch.ones(count, device=device, dtype=torch.float32)

    def penalty(self, divergence: Tensor) -> Tensor:
        """The second term of Eq. 3, (problems,)."""
        return self.values * (divergence - self.margin)

    @torch.no_grad()
    def update(self, divergence: Tensor, speed: float = 1.0, floor: float = 0.0) -> None:
        violation = (divergence - self.margin).clamp(max=self.MOST * self.margin)
        self.values = (self.values + self.RATE * speed * violation).clamp(floor, self.LARGEST)

    def raise_where(self, which: Tensor) -> None:
        """Double some multipliers, to at least LEAST_RAISED."""
        raised = (2 * self.values).clamp(self.LEAST_RAISED, self.LARGEST)
        self.values = torch.where(which, raised, self.values)
