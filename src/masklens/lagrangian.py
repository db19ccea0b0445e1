"""The constrained objective and the one training loop of the package.

    minimise   E[share of states kept]    subject to    E[divergence] <= margin      (Eqs. 1 to 3)

with one Lagrangian multiplier a *group* (a site for a lens, an example for the non-amortised form). What
is learned, and from what data, is the objective's business; this file owns the optimiser, the multipliers,
checkpoints, convergence and the progress bar.

The multipliers decide success, so they are designed rather than left to an optimiser:

- **Warming.** What replaces a dropped state is learned first, under random masks: gates that close on a bad
  baseline only open again.
- **Straight through.** Nearly every sampled gate is 0 or 1, and through a clamp nothing is learned from it.
  The model's gradient is passed to the probability instead, so that every token teaches its gate each step.
- **An anchor.** Baselines go on being learned beside the gates. But these know the prediction, and together
  they came to say one class with everything dropped, so that texts of that class kept nothing. Emptied texts
  are therefore held to the model's average output.
- **In units of the worst.** A group's divergence counts as a share of what dropping everything does to it, so
  that the same settings serve two classes and the start and end of an answer.
- **From above.** Multipliers begin high, come down while there is room under the margin, and never fall below
  a floor, at which it still does not pay to drop all that is left: gates close one after the other. Gates
  that shut all at once rarely open again, however high the multiplier then climbs, since a gate that is never
  sampled open has no gradient. Multipliers move by factors on the violation in units of the aim, clipped:
  after a transient they come down again in at most a few times as many steps.
- **Room for those who know better.** Where rows vote, what an early one drops stays dropped. It may use only
  a share of the margin, so that later ones, which have read more of the model, can drop more.
- **From below**, for small problems whose masks have to be exact (`relative=False`, a small first
  `multiplier`, `sharpen_from` well after `warm_until`): until sharpening begins multipliers may fall to 0,
  so that gates that are all open begin to close. Then the penalty becomes P(kept)^`power`, whose gradient
  does not die on gates that are nearly shut, and the multipliers get their floor.
- **From the answer.** What a model points at, such as an answer, is known exactly at the end only, and gates
  that close one after the other lose it. A last row that is told (`pointed`) begins with all else dropped and
  a small multiplier, and opens what brings it under its margin; changed answers are paid for as well.
- **Recovery.** A group that was good and is now far over its margin, or that stays near the divergence of
  dropping everything, has collapsed: it is put back to its last good weights with a larger multiplier, and
  the event is reported.

After the last step a lens settles (`LensObjective.settle`): gates are opened until every site keeps its
margin on validation data. Where the sparsest weights met on the way that kept all margins (`Training.best`)
need less of that, they are taken.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .errors import TrainingError
from .files import whole
from .processes import World, is_main

CHECKPOINT = "checkpoint.safetensors"
"""what a fit can be taken up from again"""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, so that the same settings and data give the same result."""

    margin: float = 0.1
    """allowed divergence, in nats"""
    steps: int = 2000
    batch_size: int = 128
    lr: float = 1e-3
    baseline_lr: float = 1e-3
    centered: bool = False
    """RMSprop with the variance of the gradient rather than its square; without noise it takes giant steps"""
    warmup: int = 100
    clip: float = 1.0
    """largest gradient norm"""
    multiplier: float = 5.0
    """first value"""
    multiplier_lr: float = 0.02
    """how fast it moves: the share of itself for a violation as large as the aim, or where not `relative` the
    step for one of 1 nat"""
    multiplier_max: float = 100.0
    floor: float = 1.5
    """smallest multiplier while sharpening"""
    floor_follows: bool = True
    """whether the floor is times the share that a group still keeps, where `relative`"""
    relative: bool = True
    """whether a group's divergence counts as a share of what dropping everything does to it"""
    slack: float = 0.1
    """the share of the margin that training leaves free, so that texts it never saw keep it too"""
    first_aim: float = 0.1
    """where rows vote, the share of the aim that the first one may use; it grows to 1 by equal factors: what
    is dropped early stays dropped, and later rows know better"""
    late_aim: float = 0.2
    """where the last row knows what the output points at, the share that the one before it may use"""
    pointed_multiplier: float = 0.5
    """the first value for such a row, which begins with nearly everything dropped"""
    hold: float = 8.0
    """what such a row pays, beside the divergence and with the same multiplier, for outputs that point
    elsewhere: nothing where they do not, all of it where what they pointed at has become unlikely"""
    deeper: bool = True
    """where rows vote, whether half of the examples train the last one, and of the others the n-th n times as
    many as the first; else all alike"""
    warm_until: float = 0.1
    """the share of the steps for which baselines alone are learned, under random masks"""
    joint: bool = True
    """whether baselines go on being learned beside the gates, as published; else they stay after warming"""
    anchor: float = 0.3
    """the weight of how far the output of a text with everything dropped is from the model's average output,
    while baselines are learned; without it (0, as published) they can come to say one class by themselves,
    and texts of that class keep nothing. For tasks whose outputs have an average"""
    sharpen_from: float = 0.1
    """the share of the steps after which sharpening begins"""
    power: float = 1.0
    """exponent of P(kept) while sharpening; 1 is the plain expected L0"""
    penalty: str = "plain"
    """"plain" as above, or "log": the mean log P(kept) throughout, as in the published code"""
    straight: bool = True
    """whether the model's gradients pass straight through a lens's sampled gates to P(kept); else only where
    a sample lies between 0 and 1, as published"""
    shared: bool = True
    """whether examples share what is learned: their terms are averaged; else summed, so that none depends
    on the others"""
    evaluate_every: int = 200
    patience: int = 10
    """stop after so many evaluations of the sharpening stage without a sparser solution within the margins;
    0: never early"""
    seed: int = 0
    mixed_precision: str = "no"
    """"no", or "bf16": a lens is learned on a copy of the model in bfloat16 and judged on the model itself"""

    @property
    def aim(self) -> float:
        """The divergence that training holds: a little under the margin, so that held-out data keep it."""
        return (1 - self.slack) * self.margin

    def rate(self, step: int) -> float:
        """The learning rate as a share of its peak: up over `warmup` steps, down to 0.1 over the last 30%."""
        up = (step + 1) / max(1, self.warmup)
        down = 0.1 + 3 * (1 - (step + 1) / self.steps)
        return min(1.0, up, down)

    def warming(self, step: int) -> bool:
        return step < self.warm_until * self.steps

    def sharpening(self, step: int) -> bool:
        return step >= self.sharpen_from * self.steps


class Terms(NamedTuple):
    """One step's differentiable terms, an entry an example."""

    log_keep: Tensor
    """(examples, tokens): log P(kept)"""
    valid: Tensor
    """(examples, tokens) bool"""
    divergence: Tensor
    """(examples,)"""
    group: Tensor
    """(examples,): which multiplier"""
    anchor: Tensor | float = 0.0
    """how far outputs are from the average where everything is dropped"""
    lost: Tensor | float = 0.0
    """(examples,): what is added to divergences in the loss, not to what the multipliers see"""


class Diagnostic(NamedTuple):
    """How one group does on held-out data, with hard gates (kept where P(kept) > 0.5)."""

    site: int
    divergence: float
    kept: float
    """share of states kept"""
    agreement: float
    """share of examples with the same prediction"""
    multiplier: float
    ok: bool
    """whether the divergence is within the margin"""


class Objective(Protocol):
    """A constrained problem: what is learned, and how it is judged."""

    groups: int

    @property
    def votes(self) -> bool:
        """Whether what a group drops stays dropped in all groups after it."""

    @property
    def pointed(self) -> bool:
        """Whether the last group knows what the output points at, and begins with nearly all else dropped."""

    @property
    def module(self) -> nn.Module:
        """What is learned."""

    def terms(self, step: int, rank: int, world: int) -> Terms:
        """The terms of this process's share of the step's batch; the same for the same step."""

    def diagnose(self, multipliers: Sequence[float]) -> list[Diagnostic]:
        """Deterministic, on validation data; none if there is nothing to hold out."""

    def worst(self) -> list[float]:
        """The held-out divergence of each group when everything is dropped."""

    def weights_of(self, group: int) -> list[Tensor]:
        """What belongs to this group alone: to be kept while it is good, and put back if it collapses."""


def kept_cost(terms: Terms, settings: Settings, sharpening: bool) -> Tensor:
    """The penalty of each example (examples,): the mean over its tokens of P(kept), of its power, or of
    its log. All are smallest when everything is dropped."""
    if settings.penalty == "log":
        each = terms.log_keep
    else:
        each = (terms.log_keep * (settings.power if sharpening else 1.0)).exp()
    return (each * terms.valid).sum(-1) / terms.valid.sum(-1)


class Multipliers:
    """One Lagrangian multiplier a group, which climbs while its margin is violated and falls while it is not.

    Relative ones move by factors, since what they have to become differs a hundredfold between groups, and a
    violation counts in units of the group's aim: up at most three times as fast as they can come down. Others
    move by steps (plain gradient ascent).
    """

    MOST_AIMS, MOST_MARGINS = 3.0, 10.0
    """what a violation counts for at most, where relative, and where not"""
    SHARPENING = 5.0
    """how much larger steps are while sharpening, when the floor keeps them from falling too far"""
    MEMORY = 0.95
    """how much of the share kept, as known so far, a step's examples leave as it is"""

    def __init__(self, worst: Tensor, settings: Settings, votes: bool = False, pointed: bool = False) -> None:
        self.settings = settings
        self.aim = settings.aim * _shares(len(worst), settings, votes, pointed).to(worst)
        self.unit = worst.clamp(min=settings.margin) if settings.relative else torch.ones_like(worst)
        self.values = torch.full_like(worst, settings.multiplier)
        if pointed:
            self.values[-1] = settings.pointed_multiplier
        self.kept = torch.ones_like(worst)

    def penalty(self, divergence: Tensor, group: Tensor) -> Tensor:
        """What each example's violation of its margin costs: the second term of Eq. 3."""
        return (self.values / self.unit)[group] * (divergence - self.aim[group])

    def update(self, divergence: Tensor, kept: Tensor, count: Tensor, sharpening: bool) -> None:
        """From each group's summed divergence and share kept, and its number of examples in the step."""
        s, seen, of = self.settings, count > 0, count.clamp(min=1)
        moved = torch.where(seen, self._moved(divergence / of, sharpening), self.values)
        self.kept = torch.where(seen, self.kept.lerp(kept / of, 1 - self.MEMORY), self.kept)
        follows = s.relative and s.floor_follows
        floor = s.floor * (self.kept if follows else torch.ones_like(self.kept))
        self.values = moved.clamp(max=s.multiplier_max).maximum(
            floor if sharpening else torch.zeros_like(floor)
        )

    def _moved(self, divergence: Tensor, sharpening: bool) -> Tensor:
        s = self.settings
        if s.relative:
            violation = (divergence / self.aim - 1).clamp(max=self.MOST_AIMS)
            return self.values * (s.multiplier_lr * violation).exp()
        rate = s.multiplier_lr * (self.SHARPENING if sharpening else 1.0)
        return self.values + rate * (divergence - self.aim).clamp(max=self.MOST_MARGINS * s.margin)


def _shares(groups: int, settings: Settings, votes: bool, pointed: bool) -> Tensor:
    """The shares of the aim that groups may use: where they vote, from `first_aim` on by equal factors."""
    if not votes:
        return torch.ones(groups)
    if pointed:
        voting, last = groups - 1, settings.late_aim
    else:
        voting, last = groups, 1.0
    left = torch.linspace(1.0, 0.0, voting) if voting > 1 else torch.zeros(voting)  # to the last of them
    return torch.cat([settings.first_aim**left * last ** (1 - left), torch.ones(groups - voting)])


class Training:
    """A run of the loop: optimiser, multipliers, step; it can be saved and taken up again.

    training = Training(objective, Settings(margin=0.1), folder)
    training.run()
    """

    LOOK = 10
    """after how many steps the loss is looked at, for which a GPU has to be waited for"""

    def __init__(
        self, objective: Objective, settings: Settings, folder: str | os.PathLike[str] | None = None
    ):
        if settings.penalty not in ("plain", "log"):
            raise TrainingError(f"penalty={settings.penalty!r}; use 'plain' or 'log'")
        if settings.mixed_precision not in ("no", "bf16"):
            raise TrainingError(f"mixed_precision={settings.mixed_precision!r}; use 'no' or 'bf16'")
        shares = settings.first_aim, settings.late_aim
        if not (all(0 < share <= 1 for share in shares) and 0 <= settings.slack < 1):
            raise TrainingError(
                f"first_aim={settings.first_aim}, late_aim={settings.late_aim}, slack={settings.slack} are "
                f"shares of the margin: give aims above 0 and at most 1, a slack of at least 0 and below 1"
            )
        if settings.hold < 0:
            raise TrainingError(f"hold={settings.hold}; give 0 or more")
        self.objective, self.settings = objective, settings
        self.file = None if folder is None else Path(folder) / CHECKPOINT
        self.device = next(objective.module.parameters()).device
        self.processes = World(self.device)
        # What is not shared is each process's own: nothing is reduced.
        self.world = self.processes.size if settings.shared else 1
        self.rank = self.processes.rank if settings.shared else 0
        learned = {name: p for name, p in objective.module.named_parameters() if p.requires_grad}
        self.parameters = list(learned.values())
        self.baselines = [p for name, p in learned.items() if name.startswith(("baselines", "places"))]
        self.optimizer = _optimizer(self.parameters, self.baselines, settings)
        self.worst = objective.worst()
        self.multipliers = Multipliers(
            torch.tensor(self.worst, device=self.device), settings, objective.votes, objective.pointed
        )
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.events: list[str] = []
        self._good = {group: self._copy(group) for group in range(objective.groups)}
        self._lost = torch.tensor(False, device=self.device)
        self._best: tuple[float, dict[str, Tensor]] = (math.inf, {})

    def run(self, show_progress: bool = False) -> list[Diagnostic]:
        """Train to the last step or to convergence; returns the diagnostics of the end."""
        latest = self.objective.diagnose(self.multipliers.values.tolist())
        with _progress(show_progress and is_main(), self) as report:
            while self.step < self.settings.steps and not self._converged():
                terms = self._one_step()
                self.step += 1
                report(terms, latest)
                if self.step % self.LOOK == 0:
                    self._check_loss()
                if self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps:
                    latest = self._evaluate()
        return latest

    def _check_loss(self) -> None:
        if self._lost:
            raise TrainingError(f"the loss was not finite before step {self.step}; lower lr, or use float32")

    @property
    def best(self) -> dict[str, Tensor]:
        """The sparsest weights seen that kept all margins on validation data; none if there are none."""
        return self._best[1]

    def _one_step(self) -> Terms:
        s, sharpening = self.settings, self.settings.sharpening(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * s.rate(self.step)
        for p in self.baselines:
            p.requires_grad_(s.joint or s.warming(self.step))
        terms = self.objective.terms(self.step, self.rank, self.world)
        cost = kept_cost(terms, s, sharpening)
        each = cost + self.multipliers.penalty(terms.divergence + terms.lost, terms.group)  # Eq. 3
        loss = each.sum() * (self._weight(len(each)) / max(1, len(each)) if s.shared else 1.0)
        loss = loss + s.anchor * terms.anchor
        self._lost.logical_or_(~torch.isfinite(loss.detach()))
        self.optimizer.zero_grad()
        loss.backward()
        self._share_gradients()
        if s.clip:
            nn.utils.clip_grad_norm_(self.parameters, s.clip)
        self.optimizer.step()
        if not s.warming(self.step):
            self._update_multipliers(terms, sharpening)
        return terms

    def _weight(self, count: int) -> float:
        """What this process's mean counts for, so that the mean over processes is that over the examples of
        the step, also where their shares are of different size."""
        if self.world == 1:
            return 1.0
        total = self.processes.summed(torch.tensor(float(count), device=self.device))
        return count * self.world / float(total)

    def _share_gradients(self) -> None:
        """Average gradients over processes; a parameter unused in one process counts as zero there."""
        if self.world == 1:
            return
        for p in self.parameters:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = self.processes.summed(grad) / self.world

    def _update_multipliers(self, terms: Terms, sharpening: bool) -> None:
        zeros = torch.zeros(self.objective.groups, device=self.device)
        kept = (terms.log_keep.detach().exp() * terms.valid).sum(-1) / terms.valid.sum(-1)
        each = (terms.divergence.detach().float(), kept.float(), torch.ones_like(kept, dtype=torch.float32))
        sums = torch.stack([zeros.index_add(0, terms.group, one) for one in each])
        if self.world > 1:
            sums = self.processes.summed(sums)
        self.multipliers.update(sums[0], sums[1], sums[2], sharpening)

    def _evaluate(self) -> list[Diagnostic]:
        """Judge, remember good weights, put back what collapsed, write a checkpoint."""
        self._check_loss()
        self._agree()
        found = self.objective.diagnose(self.multipliers.values.tolist())
        for group, d in enumerate(found):
            if d.ok:
                self._good[group] = self._copy(group)
            elif self._collapsed(group, d.divergence):
                self._put_back(group, d)
        self.history.append({"step": self.step, "rows": [d._asdict() for d in found]})
        cost = _feasible_cost(self.history[-1]["rows"])
        if self.settings.shared and cost < self._best[0]:
            weights = self.objective.module.state_dict()
            self._best = (cost, {name: value.clone() for name, value in weights.items()})
        if self.file and is_main():
            self.save()
        return found

    @torch.no_grad()
    def _agree(self) -> None:
        """Give all processes the main one's weights: rounding must not make them judge differently."""
        if self.world > 1:
            for tensor in (*self.parameters, self.multipliers.values, self.multipliers.kept):
                tensor.copy_(self.processes.from_main(tensor))

    def _collapsed(self, group: int, divergence: float) -> bool:
        """Far over the margin after having dropped something within it, or as bad as dropping everything at
        this evaluation and the last."""
        rows = [h["rows"][group] for h in self.history]
        if any(row["ok"] and row["kept"] < 0.98 for row in rows):
            return divergence > 3 * self.settings.margin
        hopeless = max(self.settings.margin, self.worst[group] / 2)
        return divergence > hopeless and any(row["divergence"] > hopeless for row in rows[-1:])

    def _put_back(self, group: int, d: Diagnostic) -> None:
        self.restore(group)
        raised = max(2 * float(self.multipliers.values[group]), 2 * self.settings.floor)
        self.multipliers.values[group] = min(raised, self.settings.multiplier_max)
        self.events.append(
            f"step {self.step}: site {d.site} had collapsed (divergence {d.divergence:.3f}, "
            f"{d.kept:.0%} kept); put back to its last good weights"
        )

    @torch.no_grad()
    def restore(self, group: int) -> None:
        """Go back to the group's last weights within its margin; at first, to where it began."""
        for weight, good in zip(self.objective.weights_of(group), self._good[group], strict=True):
            weight.copy_(good)
            self.optimizer.state.pop(weight, None)

    def _copy(self, group: int) -> list[Tensor]:
        return [weight.detach().clone() for weight in self.objective.weights_of(group)]

    def _converged(self) -> bool:
        """No sparser solution within all margins for `patience` evaluations of the sharpening stage."""
        patience = self.settings.patience
        late = [h for h in self.history if self.settings.sharpening(h["step"])]
        costs = [_feasible_cost(h["rows"]) for h in late]
        if not patience or len(costs) <= patience or not math.isfinite(min(costs)):
            return False
        return min(costs[-patience:]) > 0.995 * min(costs[:-patience])

    def save(self) -> None:
        """Write a checkpoint; the file is whole or absent."""
        from safetensors.torch import save_file

        assert self.file is not None
        tensors = {f"module.{k}": v for k, v in self.objective.module.state_dict().items()}
        tensors |= {f"optimizer.{i}.{k}": v for i, k, v in self._optimizer_tensors()}
        tensors |= {f"good.{g}.{i}": t for g, ts in self._good.items() for i, t in enumerate(ts)}
        tensors |= {f"best.{name}": value for name, value in self._best[1].items()}
        tensors["multipliers"], tensors["kept"] = self.multipliers.values, self.multipliers.kept
        about = {
            "step": self.step,
            "history": self.history,
            "events": self.events,
            "settings": asdict(self.settings),
        }
        held = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
        with whole(self.file) as part:
            save_file(held, part, metadata={"training": json.dumps(about)})

    def resume(self) -> bool:
        """Take up the checkpoint in the folder, if there is one; False if there is none."""
        from safetensors import safe_open

        if self.file is None or not self.file.exists():
            return False
        with safe_open(self.file, "pt", device=str(self.device)) as f:
            about = json.loads(f.metadata()["training"])
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        _same_settings(about["settings"], asdict(self.settings), self.file)
        self.step, self.history, self.events = about["step"], about["history"], about["events"]
        self.multipliers.values, self.multipliers.kept = tensors["multipliers"], tensors["kept"]
        self.objective.module.load_state_dict(_under(tensors, "module."))
        self._good = {g: [tensors[f"good.{g}.{i}"] for i in range(len(ts))] for g, ts in self._good.items()}
        self._load_optimizer(_under(tensors, "optimizer."))
        costs = [_feasible_cost(h["rows"]) for h in self.history]
        self._best = (min(costs, default=math.inf), _under(tensors, "best."))
        return True

    def _optimizer_tensors(self) -> Iterator[tuple[int, str, Tensor]]:
        for i, p in enumerate(self.parameters):
            for key, value in self.optimizer.state.get(p, {}).items():
                yield i, key, torch.as_tensor(value)

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            self.optimizer.state[self.parameters[int(index)]][key] = value


def _optimizer(
    parameters: Sequence[nn.Parameter], baselines: Sequence[nn.Parameter], settings: Settings
) -> torch.optim.Optimizer:
    """RMSprop, centered as in the paper if so asked; baselines have a rate of their own."""
    slow = {id(p) for p in baselines}
    others = [p for p in parameters if id(p) not in slow]
    groups = [
        {"params": params, "lr": rate, "peak": rate}
        for params, rate in ((others, settings.lr), (baselines, settings.baseline_lr))
        if params
    ]
    return torch.optim.RMSprop(groups, centered=settings.centered)


def _feasible_cost(rows: Sequence[Mapping[str, Any]]) -> float:
    return sum(r["kept"] for r in rows) if rows and all(r["ok"] for r in rows) else math.inf


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _same_settings(saved: Mapping[str, Any], given: Mapping[str, Any], file: Path) -> None:
    for name, value in given.items():
        if saved.get(name) != value:
            raise TrainingError(
                f"{file} was written with {name}={saved.get(name)!r}, this run has {name}={value!r}; "
                f"use the same settings, or another folder"
            )


@contextmanager
def _progress(shown: bool, training: Training) -> Iterator[Callable[[Terms, Sequence[Diagnostic]], None]]:
    """A bar with the last held-out divergence, the share kept and the multipliers."""
    if not shown:
        yield lambda terms, latest: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("fit", total=training.settings.steps, completed=training.step, now="")

        def report(terms: Terms, latest: Sequence[Diagnostic]) -> None:
            if training.step % 10 == 0 or training.step == training.settings.steps:
                bar.update(task, completed=training.step, now=_now(terms, latest, training))

        yield report


def _now(terms: Terms, latest: Sequence[Diagnostic], training: Training) -> str:
    kept = (terms.log_keep.exp() * terms.valid).sum() / terms.valid.sum()
    text = f"divergence {terms.divergence.mean().item():.3f}  kept {kept.item():.0%}"
    text += f"  multiplier {training.multipliers.values.mean().item():.1f}"
    over = [d.site for d in latest if not d.ok]
    return text + (f"  over the margin: {over}" if over else "")
