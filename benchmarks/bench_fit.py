"""Fitting a lens against a straight re-implementation of the published loop, on the toy task.

The published loop draws one site a batch and takes two rounds for each batch, one for the probe and one for
the multipliers, each with its own forward pass for the states and for the masked model; RMSprop inside
Lookahead (0.5, 6) for both; the penalty is the mean log P(kept) (De Cao et al. 2020 and their code).
"""

from __future__ import annotations

import time

import torch

from masklens.diffmask.trainer import Settings, Training
from masklens.diffmask.lens import _start
from masklens.diffmask.objective import FrozenTexts, LensObjective, edited_run
from masklens.diffmask.networks import Probe, rows_for, sample_keep
from masklens.reproduce import digits

MARGIN, BATCH, SPARSE = 0.05, 128, 0.53
"""`SPARSE`: the share of hidden states kept that counts as solved (query digits are 50%)"""


class Lookahead:
    """Slow weights that move half way towards the fast ones every six steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.fast, self.count, self.slow = optimizer, 0, {}

    def step(self) -> None:
        self.fast.step()
        self.count += 1
        if self.count % 6:
            return
        for group in self.fast.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    slow = self.slow.setdefault(p, p.detach().clone())
                    slow += 0.5 * (p.detach() - slow)
                    p.data.copy_(slow)


class Published:
    """The published loop on the same probe, data and subject."""

    def __init__(self, objective: LensObjective, warmup: int = 200) -> None:
        self.o, self.subject, self.step = objective, objective.train.subject, 0
        self.margin, self.warmup = objective.settings.margin, warmup
        self.multipliers = torch.ones(objective.groups, device=self.subject.device, requires_grad=True)
        self.probe = Lookahead(torch.optim.RMSprop(objective.module.parameters(), lr=3e-4, centered=True))
        self.ascent = Lookahead(torch.optim.RMSprop([self.multipliers], lr=0.3))

    def one_step(self) -> None:
        rows = self.o._rows(self.step)
        self.probe.fast.param_groups[0]["lr"] = 3e-4 * min(1.0, (self.step + 1) / self.warmup)
        self._round(rows, self.probe, list(self.o.module.parameters()), 1.0)
        self._round(rows, self.ascent, [self.multipliers], -1.0)
        with torch.no_grad():
            self.multipliers.clamp_(0, 200)
        self.step += 1

    def _round(self, rows: list[int], optimizer: Lookahead, learned: list, sign: float) -> None:
        batch = self.subject.encode([self.o.train.batch.texts[i] for i in rows])
        reference, states = self.subject.states(batch)
        site = int(torch.randint(self.o.groups, ()))
        logits = self.o.module.logits(states, batch.valid)
        chosen = torch.full((len(rows),), site, device=logits.device)
        keep, log_keep = sample_keep(logits, chosen, self.o.module.votes, torch.rand_like(logits))
        edit = self.o.module.rows[site].edit
        output = edited_run(self.subject, batch, edit, states[edit], keep, self.o.module.baseline(site))
        divergence = self.subject.task.divergence(reference, output).mean()
        kept = ((log_keep * batch.valid).sum(1) / batch.valid.sum(1)).mean()
        loss = self.multipliers[site] * (divergence - self.margin) + kept
        for p in learned:
            p.grad = None
        for p, grad in zip(learned, torch.autograd.grad(loss, learned, allow_unused=True), strict=True):
            p.grad = None if grad is None else sign * grad
        optimizer.step()


def make(settings: Settings) -> LensObjective:
    """A fresh probe over both sites of a toy model trained here."""
    data = digits.generate(10_000, 0)
    train, test = data.rows(torch.arange(9_000)), data.rows(torch.arange(9_000, 10_000))
    global _MODEL
    _MODEL = _MODEL or digits.train_model(train, test, 0, epochs=20)
    subject = digits.subject_for(_MODEL)
    frozen = FrozenTexts(subject, train.texts(), subject.sites, 10**9)
    held = FrozenTexts(subject, test.texts(), subject.sites, 10**9)
    torch.manual_seed(0)
    probe = Probe(rows_for("states", subject.sites), frozen.widths, False, hidden=32, gate="tanh", compared=0)
    _start(probe, subject, frozen)
    return LensObjective(probe, frozen, held, settings)


_MODEL: digits.DigitCounter | None = None


def seconds_to_solve(one_step, objective: LensObjective, limit: float) -> tuple[float | None, int]:
    """Time until hidden states are sparse within the margin on held-out data; None if not by `limit`."""
    spent, steps = 0.0, 0
    while spent < limit:
        started = time.perf_counter()
        for _ in range(50):
            one_step()
        spent += time.perf_counter() - started
        steps += 50
        found = objective.judge([1])[0]
        if found.divergence <= MARGIN and found.kept <= SPARSE:
            return spent, steps
    return None, steps


def rate(one_step, steps: int = 150) -> float:
    """Examples a second."""
    one_step()
    started = time.perf_counter()
    for _ in range(steps):
        one_step()
    return steps * BATCH / (time.perf_counter() - started)


def ours(settings: Settings) -> tuple[Training, LensObjective]:
    objective = make(settings)
    return Training(objective, settings), objective


def main() -> str:
    torch.manual_seed(0)
    multipliers = {"relative": False, "multiplier": 1.0, "multiplier_lr": 0.1, "multiplier_max": 200.0}
    from_below = {"sharpen_from": 0.5, "power": 0.5, "anchor": 0.0, "straight": False, **multipliers}
    settings = Settings(margin=MARGIN, steps=3600, batch_size=BATCH, lr=1e-3, baseline_lr=1e-2, **from_below)

    def stepper(training: Training):
        def one_step() -> None:
            training._one_step()
            training.step += 1

        return one_step

    published = Published(make(settings))
    ours_rate, their_rate = rate(stepper(ours(settings)[0])), rate(published.one_step)
    training, objective = ours(settings)
    our_time, our_steps = seconds_to_solve(stepper(training), objective, 300)
    assert our_time is not None, "our own loop did not solve the toy task"
    published = Published(make(settings))
    their_time, their_steps = seconds_to_solve(published.one_step, published.o, 6 * our_time)
    theirs = f"{their_time / our_time:.1f}x ours" if their_time else f"not in {6 * our_time:.0f} s, 6x ours"
    return f"""Fitting a lens on the toy task, batch {BATCH} (both sites of hidden-state masking)
examples a second: ours {ours_rate:,.0f}, published loop {their_rate:,.0f}: {ours_rate / their_rate:.1f}x
time to at most {SPARSE:.0%} of hidden states kept within the margin:
ours {our_time:.1f} s ({our_steps} steps), published loop {theirs} ({their_steps} steps)"""
