"""DiffMask without amortisation: free masks learned for each text alone (Table 2, Figures 12b and 12c).

Such masks find what happens to work for one text, which is more than the model knows it can do without.
Nothing is shared between texts, so a text's result does not depend on the others in its batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import MethodError
from ..methods.baselines import absent_state, mask_or_zero
from ..methods.batching import stacked
from ..methods.registry import Request, register
from ..model.masking import edited_run
from ..progress import track
from .gates import HardConcrete
from .multipliers import AIM, Multipliers
from .networks import THRESHOLD, kept

OPEN, LARGEST = 5.0, 10.0
"""the first logit of every gate, and the largest size of a logit, as in the published code"""
SHARPEN = 0.5
"""after this share of the steps the penalty becomes the root of P(kept), whose gradient does not die on gates
that are nearly shut"""
SHARP_SPEED, SHARP_FLOOR = 5.0, 1.5
"""and multipliers move faster, but no lower than this: gates that are left open are needed by then"""
LOOK = 25
"""steps between looks at the hard masks, whose last version within the margin is remembered"""
LOST = 3.0
"""a text over its margin by this factor goes back to its last masks within it, with a larger multiplier"""
DECAY = 0.99
"""of the moving average that REINFORCE compares a divergence with"""


class Estimate(NamedTuple):
    """What one step knows of each text: log P(kept) (texts, tokens), and its divergence (texts,)."""

    log_keep: Tensor
    divergence: Tensor


class FreeMasks:
    """A logit for every token of every text at one site, and a baseline per text.

    Args:
        baseline: what replaces a state; broadcasts to the states.
        learn_baseline: let each text move its own copy of the baseline (Figure 12b); else it is fixed (12c).
    """

    def __init__(self, request: Request, site: int, baseline: Tensor, learn_baseline: bool) -> None:
        self.subject, self.batch, self.site = request.subject, request.batch, site
        self.noise = request.draws(1, torch.rand)
        self.reference, self.state = request.reference, request.states()[site]
        self.values = torch.full(
            self.batch.shape, OPEN, device=self.state.device, dtype=torch.float32, requires_grad=True
        )
        start = baseline.to(self.state).expand_as(self.state)[:, :1].float()
        self.baseline = start.clone().requires_grad_(learn_baseline)

    @property
    def logits(self) -> Tensor:
        """(texts, tokens)"""
        return self.values.clamp(-LARGEST, LARGEST)

    def divergence(self, keep: Tensor) -> Tensor:
        """How far each output moves when the states are mixed by `keep` (texts, tokens): (texts,)."""
        output = edited_run(self.subject, self.batch, self.site, self.state, keep, self.baseline)
        return self.subject.task.divergence(self.reference, output)

    def keep_probability(self) -> Tensor:
        return kept(self.logits)

    def estimate(self) -> Estimate:
        gate = HardConcrete(self.logits)
        keep = gate.rsample(uniform=next(self.noise)[..., 0])
        return Estimate(gate.log_prob_nonzero(), self.divergence(keep))

    @torch.no_grad()
    def hard_divergence(self) -> Tensor:
        return self.divergence((self.keep_probability() > THRESHOLD).float())


class ReinforceMasks(FreeMasks):
    """The same with Bernoulli gates and the score-function estimator (Williams 1992).

    The divergence's gradient is (divergence - moving average) * grad log P(gates).
    """

    average: Tensor | None = None

    def keep_probability(self) -> Tensor:
        return self.logits.sigmoid()

    def estimate(self) -> Estimate:
        logits = self.logits
        keep = (next(self.noise)[..., 0] < logits.sigmoid()).float()
        with torch.no_grad():
            # to 4 digits: what float32 adds beyond depends on the batch, and the optimiser would follow it
            found = self.divergence(keep).round(decimals=4)
            before = found if self.average is None else self.average
            self.average = DECAY * before + (1 - DECAY) * found
        each = -F.binary_cross_entropy_with_logits(logits, keep, reduction="none")
        log_prob = (each * self.batch.valid).sum(-1)
        surrogate = found + (found - before) * (log_prob - log_prob.detach())
        return Estimate(F.logsigmoid(logits), surrogate)


def learn(masks: FreeMasks, margin: float, steps: int, lr: float) -> Tensor:
    """Minimise the share kept of every text under its margin (Eq. 3); which ended over it, (texts,) bool.

    A text that ends over its margin goes back to its last masks within it.
    """
    if steps < 1:
        raise MethodError(f"steps is {steps}; it must be at least 1")
    learned = [{"params": [masks.values], "peak": lr}, {"params": [masks.baseline], "peak": lr / 10}]
    optimizer = torch.optim.RMSprop(learned[: 1 + masks.baseline.requires_grad], lr=lr)
    multipliers = Multipliers(len(masks.batch), AIM * margin, masks.state.device)
    good = masks.values.detach().clone()
    valid = masks.batch.valid
    for step in track(range(steps), "learning masks"):
        sharp = step >= SHARPEN * steps
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * min(1.0, 0.1 + 3 * (1 - (step + 1) / steps))
        log_keep, divergence = masks.estimate()
        cost = ((log_keep * (0.5 if sharp else 1.0)).exp() * valid).sum(1) / valid.sum(1)
        optimizer.zero_grad()
        (cost + multipliers.penalty(divergence)).sum().backward()
        for learner in (masks.values, masks.baseline):
            if learner.grad is not None:  # far from any text a model's gradients can overflow: no step there
                learner.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        multipliers.update(divergence.detach(), SHARP_SPEED if sharp else 1.0, SHARP_FLOOR if sharp else 0.0)
        if (step + 1) % LOOK == 0 or step + 1 == steps:
            divergence = masks.hard_divergence()
            over, lost = divergence > margin, divergence > LOST * margin
            good = torch.where(over[:, None], good, masks.values.detach())
            with torch.no_grad():  # gates that are all shut have no gradient to open again
                masks.values.copy_(torch.where(lost[:, None], good, masks.values))
            multipliers.raise_where(lost)
    with torch.no_grad():
        masks.values.copy_(good)
    return over


def free_masks(
    request: Request,
    kind: Callable[..., FreeMasks],
    margin: float,
    steps: int,
    lr: float,
    learn_baseline: bool = False,
) -> Tensor:
    """P(kept) of every token at every site asked for: (examples, sites, tokens)."""

    def at_site(site: int) -> Tensor:
        default = mask_or_zero(request) if learn_baseline else "zero"
        baseline = absent_state(request, site, request.states()[site], default)
        with torch.enable_grad():
            masks = kind(request, site, baseline, learn_baseline)
            over = learn(masks, margin, steps, lr)
        for i in over.nonzero()[:, 0].tolist():
            request.notes.setdefault(i, {})[f"restored@{site}"] = True
        return torch.where(request.batch.valid, masks.keep_probability().detach(), 0.0)

    return stacked(request, at_site)


def diffmask_per_text(request: Request, margin: float, steps: int, lr: float, learn_baseline: bool) -> Tensor:
    """The method `diffmask` where no lens is given."""
    warnings.warn(
        "diffmask without lens= learns masks for each text alone: slow, and prone to drop what the model "
        "uses; fit a lens with masklens.DiffMask.fit",
        stacklevel=3,
    )
    return free_masks(request, FreeMasks, margin, steps, lr, learn_baseline)


@register(
    "reinforce",
    summary="The objective of diffmask without a lens, by REINFORCE with a moving-average baseline",
    cost="steps",
    paper="Williams 1992; De Cao et al. 2020, Table 2",
    needs="time",
    merge="max",
    exempt={"zero_effect": "keep probabilities of a model without effect go to 0 but never reach it"},
    quick={"steps": 10},
    baseline="zero",
)
def reinforce(request: Request, *, margin: float = 0.1, steps: int = 1000, lr: float = 0.1) -> Tensor:
    """P(kept) of every token, learned for each text alone with Bernoulli masks."""
    return free_masks(request, ReinforceMasks, margin, steps, lr)
