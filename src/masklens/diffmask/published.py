"""The training of the paper (De Cao et al. 2020, sections 2 and 3, appendix A) and its released code.

    DiffMask.fit(subject, texts, recipe="published")

It is here to compare with: product of votes, log L0, one site a batch, two optimisers. It collapses easily:
gates that are all shut have no gradient, and no multiplier opens them again. The diagnostics then say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ..errors import TrainingError
from ..model.masking import edited_run
from ..model.subject import Subject
from ..records.layers import site_name
from .first_states import first_states
from .gates import HardConcrete
from .judging import judge
from .networks import MaskRow, Masks, Over, hidden_units, seeded
from .texts import FrozenTexts
from .trainer import Settings, diagnostics

if TYPE_CHECKING:
    from .lens import DiffMask

BATCH = 64
LR, BASELINE_LR, MULTIPLIER_LR = 3e-4, 1e-3, 0.3
WARMUP = 0.03
"""1,200 of 40,000 steps"""
LARGEST_MULTIPLIER = 200.0
LOOKAHEAD_EVERY, LOOKAHEAD = 6, 0.5


class PublishedProbe(Masks):
    """A gate network for every site, whose votes multiply over sites where they mask inputs."""

    def __init__(
        self, rows: Sequence[MaskRow], widths: Mapping[int, int], votes: bool, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.rows, self.votes = tuple(rows), votes
        self.networks = nn.ModuleList(
            _network(sum(widths[s] for s in row.reads), hidden_units(row, widths, hidden))
            for row in self.rows
        )
        self.biases = nn.Parameter(torch.full((len(self.rows),), 5.0, dtype=torch.float32))
        edits = dict.fromkeys(row.edit for row in self.rows)
        self.baselines = nn.ParameterDict(
            {str(e): nn.Parameter(torch.zeros(widths[e], dtype=torch.float32)) for e in edits}
        )

    def baseline(self, row: int) -> Tensor:
        return self.baselines[str(self.rows[row].edit)]

    def gate(self, row: int, states: Mapping[int, Tensor]) -> HardConcrete:
        """The gates (examples, tokens) of one row: 10 tanh(...) + bias."""
        seen = torch.cat([states[site].float() for site in self.rows[row].reads], dim=-1)
        return HardConcrete(10 * self.networks[row](seen)[..., 0] + self.biases[row])

    def voters(self, row: int) -> range:
        """The rows whose votes decide with a row: all up to it, where votes multiply."""
        return range(row + 1) if self.votes else range(row, row + 1)

    def log_keep(self, row: int, states: Mapping[int, Tensor]) -> Tensor:
        """log P(kept): the sum of the voters'."""
        return torch.stack([self.gate(i, states).log_prob_nonzero() for i in self.voters(row)]).sum(0)

    def sample(self, row: int, states: Mapping[int, Tensor], generator: torch.Generator) -> Tensor:
        """The product of the voters' sampled gates."""
        gates = [self.gate(i, states) for i in self.voters(row)]
        drawn = [
            torch.rand(gate.logits.shape, generator=generator, dtype=torch.float32).to(gate.logits.device)
            for gate in gates
        ]
        return torch.stack([g.rsample(uniform=u) for g, u in zip(gates, drawn, strict=True)]).prod(0)

    def keep_of(self, row: int, states: Mapping[int, Tensor], reader: Tensor | None = None) -> Tensor:
        """P(kept); gates as published read a token's own states, also in a causal model."""
        return self.log_keep(row, states).exp()


def _network(seen: int, units: int) -> nn.Module:
    inner = weight_norm(nn.Linear(seen, units, dtype=torch.float32))
    outer = weight_norm(nn.Linear(units, 1, bias=False, dtype=torch.float32))
    return nn.Sequential(inner, nn.Tanh(), outer, nn.Tanh())


class Lookahead:
    """Every few steps, weights go half of the way back to where they last were (Zhang et al. 2019)."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters, self.count = parameters, 0
        self.slow = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        if self.count % LOOKAHEAD_EVERY == 0:
            for p, slow in zip(self.parameters, self.slow, strict=True):
                slow.lerp_(p, LOOKAHEAD)
                p.copy_(slow)


def train(probe: PublishedProbe, texts: FrozenTexts, settings: Settings) -> Tensor:
    """Two optimisers take turns on each batch, each at a site of its own; the multipliers, (rows,)."""
    task, generator = texts.subject.task, torch.Generator().manual_seed(settings.seed)
    gates = [*probe.networks.parameters(), probe.biases]
    baselines = list(probe.baselines.values())
    multipliers = nn.Parameter(torch.ones(len(probe.rows), device=probe.biases.device, dtype=torch.float32))
    minimise = torch.optim.RMSprop(
        [{"params": gates, "peak": LR}, {"params": baselines, "peak": BASELINE_LR}], lr=LR, centered=True
    )
    maximise = torch.optim.RMSprop([multipliers], lr=MULTIPLIER_LR, maximize=True)
    ahead = (Lookahead([*gates, *baselines]), Lookahead([multipliers]))

    def one_site() -> tuple[int, Tensor, Tensor]:
        """A row drawn at random, its mean log P(kept) (the sparsity loss), its violation of the margin."""
        row = int(torch.randint(len(probe.rows), (1,), generator=generator))
        index = torch.randint(len(texts), (settings.batch_size or BATCH,), generator=generator).tolist()
        drawn = texts.draw(index)
        states = drawn.states()
        keep, edit = probe.sample(row, states, generator), probe.rows[row].edit
        output = edited_run(
            texts.subject, drawn.batch, edit, states[edit], keep, probe.baseline(row), check=False
        )
        inside = drawn.removable
        sparsity = ((probe.log_keep(row, states) * inside).sum(1) / inside.sum(1).clamp(min=1)).mean()
        return row, sparsity, task.divergence(drawn.output, output).mean() - settings.margin

    for step in range(settings.steps):
        for group in minimise.param_groups:
            group["lr"] = group["peak"] * min(1.0, (step + 1) / (WARMUP * settings.steps))
        row, sparsity, violation = one_site()
        minimise.zero_grad()
        (sparsity + multipliers[row].detach() * violation).backward()
        minimise.step()
        ahead[0].step()
        with torch.no_grad():
            row, _, violation = one_site()
        multipliers.grad = torch.zeros_like(multipliers)
        multipliers.grad[row] = violation
        maximise.step()
        ahead[1].step()
        multipliers.data.clamp_(0, LARGEST_MULTIPLIER)
        if not torch.isfinite(sparsity.detach()):
            raise TrainingError(f"the published recipe's loss was not finite at step {step}")
    return multipliers.detach()


def fit_published(
    cls: type[DiffMask],
    subject: Subject,
    over: Over,
    rows: Sequence[MaskRow],
    texts: FrozenTexts,
    held: FrozenTexts,
    settings: Settings,
) -> DiffMask:
    """A lens by the published recipe, judged like any other; nothing is calibrated."""
    with seeded(settings.seed):
        probe = PublishedProbe(rows, texts.widths, votes=over == "inputs", hidden=settings.hidden)
    probe.to(subject.device)
    states = first_states(texts)
    with torch.no_grad():
        for site, baseline in probe.baselines.items():
            baseline.copy_(states.first_baseline(int(site)))
    multipliers = train(probe, texts, settings)
    judged = judge(probe, held)
    found = diagnostics(rows, judged, settings.margin)
    return cls(
        subject, probe.eval().requires_grad_(False), over, settings, found, _events(found, multipliers)
    )


def _events(found: Sequence[Any], multipliers: Tensor) -> list[str]:
    """The sites that collapsed: over their margin, with the multiplier unable to bring them back."""
    return [
        f"{site_name(d.site)} has collapsed: divergence {d.divergence:.3f}, {d.kept:.0%} kept, "
        f"multiplier {m:.0f}"
        for d, m in zip(found, multipliers.tolist(), strict=True)
        if not d.ok
    ]
