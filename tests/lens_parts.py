"""The parts of a lens over the planted model of sevens.py, small enough to be done again by hand."""

from __future__ import annotations

import torch
from torch import Tensor

import sevens
from masklens.diffmask.first_states import begin
from masklens.diffmask.lens import _new_probe
from masklens.diffmask.networks import LIMIT, SCALE, Over, Probe, rows_for
from masklens.diffmask.objective import LensObjective
from masklens.diffmask.texts import FrozenTexts
from masklens.diffmask.trainer import Settings
from masklens.model.subject import Subject

QUICK = Settings(margin=0.05, steps=40, batch_size=16, evaluate_every=10, lr=1e-2, hidden=8)


def frozen(texts: list, subject: Subject | None = None, keep_bytes: int = 10**9) -> FrozenTexts:
    subject = subject or sevens.subject()
    return FrozenTexts(subject, texts, subject.sites, keep_bytes)


def objective(
    settings: Settings = QUICK,
    over: Over = "states",
    subject: Subject | None = None,
    texts: list | None = None,
    held: list | None = None,
) -> LensObjective:
    """With gates that are all open, as a fit begins."""
    subject = subject or sevens.subject()
    train = frozen(texts or sevens.texts(64), subject)
    validation = frozen(held or sevens.texts(32, seed=1), subject)
    probe = _new_probe(rows_for(over, subject.sites, subject.sites[0]), train, settings, over)
    begin(probe, train)
    return LensObjective(probe, train, validation, settings)


@torch.no_grad()
def shaken(made: LensObjective, bias: float = 0.0, size: float = 0.3) -> LensObjective:
    """With gates and baselines that differ from row to row and from token to token.

    Baselines become larger: of digits below 0 the planted model would see the padding beside them instead.
    """
    generator = torch.Generator().manual_seed(5)
    for gate in made.probe.gates:
        gate.outer.weight.copy_(size * torch.randn(gate.outer.weight.shape, generator=generator))
        gate.bias.fill_(bias)
    for value in (*made.probe.baselines, *made.probe.places.values()):
        value.add_(0.3 * torch.randn(value.shape, generator=generator).abs())
    return made


@torch.no_grad()
def slow_logits(probe: Probe, row: int, states: dict[int, Tensor]) -> Tensor:
    """A row's logits of one text, from states (tokens, width) by site: token by token, unit by unit."""
    gate, made = probe.gate(row), []
    for token in range(len(states[probe.rows[row].edit])):
        seen = torch.cat([states[site][token] for site in probe.rows[row].reads])
        total = gate.bias.clone()
        for weight, bias, out in zip(gate.inner.weight, gate.inner.bias, gate.outer.weight[0], strict=True):
            total = total + SCALE * out * torch.tanh(weight @ ((seen - gate.mean) / gate.scale) + bias)
        made.append(min(max(float(total), -LIMIT), LIMIT))
    return torch.tensor(made)


def slow_baseline(probe: Probe, row: int, place: int) -> Tensor:
    """What replaces the state at one place of a text."""
    table = dict(probe.places.items()).get(str(row), [])
    own = table[place - 1] if 0 < place <= len(table) else 0.0
    return probe.baselines[row] + own


@torch.no_grad()
def slow_output(subject: Subject, text: object, probe: Probe, row: int, keep: Tensor) -> Tensor:
    """The output for one text alone, with a row's states mixed by `keep` (tokens,): (1, ...)."""
    batch, edit = subject.encode([text]), probe.rows[row].edit
    state = subject.states(batch, [edit]).states[edit][0]
    mixed = [
        k * s + (1 - k) * slow_baseline(probe, row, i)
        for i, (k, s) in enumerate(zip(keep, state, strict=True))
    ]
    return subject.run(batch, replace={edit: torch.stack(mixed)[None]}).output
