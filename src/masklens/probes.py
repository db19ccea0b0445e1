"""Gate networks: from the states of a model to the logits of its gates.

A probe makes one decision a *row*: it edits the states at one site, reading them at others.

    inputs   row l edits site 0, reads (0, l); what is dropped at a row stays dropped at those after it
    states   row l edits site l, reads (l,)
    pairs    row edits site a, reads (b,)

(De Cao et al. 2020, sections 2 and appendix A; the form over pairs is what their Figure 3e, right, needs.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoding import moved
from .errors import TrainingError
from .gates import HardConcrete
from .tasks import POINTED

OPEN = 5.0
"""the gates' first logit: kept with probability 0.995"""
SHUT = {True: -4.0, False: -5.0}
"""the smallest logit of a gate, where rows vote and where not: what is dropped is still tried now and then,
kept with probability 0.02 or 0.01"""
SCALE = 10.0
"""what the networks' outputs are multiplied with, so that gates move fast enough"""
GATES = ("inward", "tanh", "plain")
FIRST = 3.0
"""what a row says at first, where rows add up"""
COMPARED = 16
"""of a network's hidden units, how many see a token beside the others of its text"""
POINTING = 12.0
"""how much more at first speaks for a token of an answer, where the last row knows it"""
SUMMARY = 3
"""how many times as wide as a state a `summary` is"""
CAREFUL = 0.2
"""how much smaller the steps of what is learned of a summary are, which all tokens of a text share"""
LEAST = -10.0
"""the smallest outcome of a comparison"""
ALL = slice(None)

Over = str | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One decision: which states at site `edit` can go, judged from the states at sites `reads`."""

    site: int
    """the site under which it is reported"""
    edit: int
    reads: tuple[int, ...]


def rows_for(over: Over, sites: Sequence[int]) -> tuple[Row, ...]:
    """The rows of a probe over "inputs", "states", or (edited site, read site) pairs."""
    first = sites[0]
    if over == "inputs":
        return tuple(Row(site, first, (first, site)) for site in sites)
    if over == "states":
        return tuple(Row(site, site, (site,)) for site in sites)
    if isinstance(over, str):
        raise TrainingError(f"over={over!r}; use 'inputs', 'states', or pairs (edited site, read site)")
    return tuple(Row(read, edit, (read,)) for edit, read in over)


def reads_of(rows: Sequence[Row], pointed: bool) -> tuple[int, ...]:
    """The sites whose states a probe of these rows needs."""
    sites = dict.fromkeys(site for row in rows for site in (row.edit, *row.reads))
    return (*sites, POINTED) if pointed else tuple(sites)


class Normed(nn.Module):
    """Weights of linear layers, one a member, with weight normalisation: g v / |v| for each output."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        weight = torch.stack([layer.weight.detach() for layer in layers])
        self.size = nn.Parameter(weight.norm(dim=-1, keepdim=True))  # (members, out, 1)
        self.direction = nn.Parameter(weight)  # (members, out, in)

    @property
    def weight(self) -> Tensor:
        return normed(self.size, self.direction)


def normed(size: Tensor, direction: Tensor) -> Tensor:
    return direction * (size / direction.norm(dim=-1, keepdim=True))


class GateNetwork(nn.Module):
    """One hidden layer, tanh, weight normalisation; a logit a token (appendix A). One network a member.

    Inputs are standardised with statistics of the training states.

    Args:
        gate: how the output becomes a logit. "plain": added to a learned bias; "tanh": so, within 10 of the
            bias (both as in the paper); "inward": its tenfold, but within `limits`, see `inward`.
        compared: how many of the hidden units see a token beside the others of its text, see `compare`, at
            most half of them; the paper has none.
        first: the bias before anything is learned.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        width: int,
        hidden: int,
        gate: str = "inward",
        limits: tuple[float, float] = (-OPEN, OPEN),
        compared: int = 0,
        first: float = OPEN,
        members: int = 1,
    ) -> None:
        super().__init__()
        if gate not in GATES:
            raise TrainingError(f"gate={gate!r}; use {', '.join(map(repr, GATES))}")
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        inner, outer = zip(*(_layers(width, hidden) for _ in range(members)), strict=True)
        self.hidden, self.out = Normed(inner), Normed(outer)
        self.hidden_bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in inner]))
        self.bias = nn.Parameter(torch.full((members,), first))
        self.gate, self.limits, self.compared = gate, limits, min(compared, hidden // 2)

    def forward(
        self, *states: Tensor, valid: Tensor, members: slice = ALL, about: Tensor | None = None
    ) -> Tensor:
        """One or more states side by side, (members, examples, tokens, width) together, to logits (members,
        examples, tokens); what a `Context` says about a text is added to the hidden units.

        Standardising is folded into the first layer, and the states are not joined: both save passes
        over memory.
        """
        weight = self.hidden.weight[members] / self.scale  # (members, hidden, width)
        total = -(weight @ self.mean)[:, None]  # (members, 1, hidden), then (members, tokens of all, hidden)
        for state, part in zip(states, weight.split([s.shape[-1] for s in states], dim=2), strict=True):
            total = total + state.flatten(1, 2) @ part.mT
        units = total.unflatten(1, valid.shape[1:])
        units = units if about is None else units + about
        units = beside_others(units, valid, self.compared).flatten(1, 2)
        units = torch.tanh(units + self.hidden_bias[members, None])
        raw = (units @ self.out.weight[members].mT)[..., 0]
        return self.logit(self.bias[members, None], raw).unflatten(1, valid.shape[1:])

    def logit(self, bias: Tensor, raw: Tensor) -> Tensor:
        """From the network's bias and output."""
        if self.gate == "inward":
            return inward(bias + SCALE * raw, *self.limits)
        return bias + (raw if self.gate == "plain" else SCALE * torch.tanh(raw))


def _layers(width: int, hidden: int) -> tuple[nn.Linear, nn.Linear]:
    """A network's layers before anything is learned: all gates begin nearly open."""
    inner, outer = nn.Linear(width, hidden), nn.Linear(hidden, 1, bias=False)
    nn.init.uniform_(outer.weight, -0.1 / hidden**0.5, 0.1 / hidden**0.5)
    return inner, outer


def beside_others(units: Tensor, valid: Tensor, compared: int) -> Tensor:
    """Hidden units (..., examples, tokens, hidden), of which the last `compared` ones are compared."""
    if not compared:
        return units
    return torch.cat([units[..., :-compared], compare(units[..., -compared:], valid)], dim=-1)


def compare(scores: Tensor, valid: Tensor) -> Tensor:
    """How a token's scores stand beside those of its text: log(n softmax), 0 where all n are alike.

    Which token holds an answer, or which of several words says most, is a question to the whole text; a
    network that sees one token at a time has to guess where its score stands.

    Args:
        scores: (..., examples, tokens, scores)
        valid: (..., examples, tokens) bool
    """
    count = valid.sum(-1).clamp(min=1).to(scores).log()[..., None, None]
    there = scores.masked_fill(~valid[..., None], torch.finfo(scores.dtype).min)
    return (there.log_softmax(-2) + count).clamp(min=LEAST)


def summary(state: Tensor, valid: Tensor) -> Tensor:
    """A whole text's states at a site: the first, the last and the mean of all, side by side.

    (..., examples, tokens, width) -> (..., examples, 3 * width); valid (..., examples, tokens) bool
    """
    first = valid.int().argmax(-1)  # (..., examples)
    last = valid.shape[-1] - 1 - valid.flip(-1).int().argmax(-1)
    ends = [state.take_along_dim(place[..., None, None], dim=-2)[..., 0, :] for place in (first, last)]
    mean = (state * valid[..., None]).sum(-2) / valid.sum(-1).clamp(min=1)[..., None]
    return torch.cat([*ends, mean], dim=-1)


class Context(nn.Module):
    """What a whole text adds to the hidden units of its tokens: a linear map of its `summary`, at first 0."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, hidden: int, members: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(SUMMARY * width))
        self.register_buffer("scale", torch.ones(SUMMARY * width))
        self.weight = nn.Parameter(torch.zeros(members, hidden, SUMMARY * width))

    def forward(self, state: Tensor, valid: Tensor, members: slice) -> Tensor:
        """From (members, examples, tokens, width) to (members, examples, 1, hidden)."""
        seen = (summary(state, valid) - self.mean) / self.scale
        return (CAREFUL * seen @ self.weight[members].mT)[..., None, :]


def opened(rows: int, votes: bool) -> float:
    """The largest logit of a gate: where all rows vote, gates that are all open keep a token with the
    probability of a single one."""
    return OPEN + (math.log(rows) if votes else 0.0)


class Probe(nn.Module):
    """Gate networks, one a row, and the baselines that replace what they drop.

    Args:
        rows: the decisions to make.
        widths: the width of the state at each site.
        votes: whether a token is kept only if all rows so far keep it (masking inputs).
        hidden: width of the networks; by default a quarter of the edited state's width, at least 32.
        learn_baseline: whether the baselines move; if not they stay as they are first set (zeros).
        places: of how many places in a text, from the second on, a baseline has a part of its own; not at
            site 0, the word embeddings, to which positions are added afterwards.
        shut: the smallest logit of a gate; by default as in `SHUT`.
        compared: of each network's hidden units, how many see a token beside the others of its text.
        sums: where rows vote, whether what they say adds up to one logit, see `summed`, or their gates
            multiply, as published.
        members: how many networks each row has, which learn apart from each other; the probability that a
            token is kept is the mean of theirs.
        pointed: whether the last row also reads what the output points at, such as an answer, and what asks
            for it. It then begins with all else dropped, and has a baseline of its own: among many tokens
            what is dropped has to be passed over, around a few it has to stand for a whole text.
        context: whether every row also reads the text as a whole at its site, see `Context`.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        widths: Mapping[int, int],
        votes: bool,
        hidden: int | None = None,
        gate: str = "inward",
        learn_baseline: bool = True,
        places: int = 0,
        shut: float | None = None,
        compared: int = COMPARED,
        sums: bool = True,
        members: int = 1,
        pointed: bool = False,
        context: bool = False,
    ) -> None:
        super().__init__()
        if members < 1:
            raise TrainingError(f"members={members}; give 1 or more")
        self.rows, self.votes, self.sums, self.members = tuple(rows), votes, votes and sums, members
        self.pointed = pointed
        self.limits = (SHUT[votes] if shut is None else shut, opened(len(self.rows), self.multiplies))
        limits = (-math.inf, math.inf) if self.sums else self.limits
        self.gates = nn.ModuleList(
            GateNetwork(
                sum(widths[s] for s in row.reads),
                hidden or max(32, widths[row.edit] // 4),
                gate,
                limits,
                compared,
                FIRST if self.sums else OPEN,
                members,
            )
            for row in self.rows
        )
        if pointed:
            # what the output points at, and what asks for it, of which nothing is said at first
            self.pointing = nn.Parameter(torch.tensor([[POINTING / SCALE, 0.0]]).repeat(members, 1))
            with torch.no_grad():
                self.gate(len(self.rows) - 1).bias.sub_(POINTING)
        self.contexts = nn.ModuleList(
            Context(widths[row.reads[-1]], self.gate(i).hidden_bias.shape[1], members)
            for i, row in enumerate(self.rows if context else ())
        )
        edits = dict.fromkeys(row.edit for row in self.rows)
        named = {self.baseline_name(i): row.edit for i, row in enumerate(self.rows)}
        self.baselines = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(widths[e]), requires_grad=learn_baseline)
             for name, e in named.items()}
        )  # fmt: skip
        self.places = nn.ParameterDict(
            {str(e): nn.Parameter(torch.zeros(places, widths[e]), requires_grad=learn_baseline)
             for e in edits if places and e > 0}
        )  # fmt: skip

    @property
    def multiplies(self) -> bool:
        """Whether a token is kept only if the gates of all rows so far are open, each on its own."""
        return self.votes and not self.sums

    @property
    def context(self) -> bool:
        """Whether rows read texts as a whole."""
        return len(self.contexts) > 0

    @property
    def reads(self) -> tuple[int, ...]:
        """The sites whose states the probe needs."""
        return reads_of(self.rows, self.pointed)

    def gate(self, row: int) -> GateNetwork:
        return cast(GateNetwork, self.gates[row])

    def weights_of(self, row: int) -> list[Tensor]:
        """What belongs to a row alone."""
        own: list[Tensor] = list(self.gate(row).parameters())
        own += self.contexts[row].parameters() if self.context else []
        return [*own, self.pointing] if self.pointed and row == len(self.rows) - 1 else own

    def baseline(self, row: int) -> Tensor:
        """What replaces a state that a row drops: one vector for each edited site, (width,), or a table by
        place (see `baseline_at`), whose first and last rows are the vector alone. A row that knows what the
        output points at has one of its own.

        Rows that edit one site share it: a baseline of its own could imitate a token that always stays. For
        the same reason the first place, where [CLS] is, has no part of its own.
        """
        site = self.baseline_name(row)
        vector = self.baselines[site]
        if site not in self.places:
            return vector
        return vector + F.pad(self.places[site], (0, 0, 1, 1))

    def baseline_name(self, row: int) -> str:
        """Rows with the same name share a baseline."""
        return "pointed" if self.pointed and row == len(self.rows) - 1 else str(self.rows[row].edit)

    @torch.no_grad()
    def fit_statistics(self, states: Mapping[int, Tensor], valid: Tensor) -> None:
        """Standardise each network's inputs by mean and standard deviation over valid positions."""
        for i, row in enumerate(self.rows):
            seen = torch.cat([states[site][valid] for site in row.reads], dim=-1).float()  # (tokens, width)
            self.gate(i).mean.copy_(seen.mean(0))
            self.gate(i).scale.copy_(seen.std(0).clamp(min=1e-3))
            if self.context:
                seen = summary(states[row.reads[-1]].float(), valid)  # (examples, 3 * width)
                cast(Context, self.contexts[i]).mean.copy_(seen.mean(0))
                cast(Context, self.contexts[i]).scale.copy_(seen.std(0).clamp(min=1e-3))

    def logits(self, states: Mapping[int, Tensor], valid: Tensor, member: int = 0) -> Tensor:
        """A member's logits of all rows: (rows, examples, tokens); valid (examples, tokens) bool."""
        read = {site: states[site][None] for site in self.reads}
        return self._logits(read, valid[None], slice(member, member + 1))[:, 0]

    def logits_by(self, states: Mapping[int, Tensor], valid: Tensor, who: Tensor) -> Tensor:
        """Logits as above, each example's by the member that `who` (examples,), on the CPU, says."""
        if self.members == 1:
            return self.logits(states, valid)
        index, place = _by_group(who, self.members)
        there = moved(index, valid.device)  # (members, examples of one)
        read = {site: states[site][there] for site in self.reads}
        found = self._logits(read, valid[there], ALL)
        return found.flatten(1, 2)[:, moved(place, valid.device)]

    def _logits(self, states: Mapping[int, Tensor], valid: Tensor, members: slice) -> Tensor:
        """Logits (rows, members, examples, tokens) of states (members, examples, tokens, width)."""
        dtype = self.gate(0).bias.dtype
        read = {site: states[site].to(dtype) for site in self.reads}
        about = [
            context(read[row.reads[-1]], valid, members)
            for context, row in zip(self.contexts, self.rows, strict=False)
        ]
        if len({tuple(read[s].shape[-1] for s in row.reads) for row in self.rows}) == 1:
            each = self._together(read, about, valid, members)
        else:
            each = torch.stack(
                [self.gate(i)(*(read[s] for s in row.reads), valid=valid, members=members,
                              about=about[i] if about else None)
                 for i, row in enumerate(self.rows)]
            )  # fmt: skip
        if self.pointed:
            more = read[POINTED] @ self.pointing[members, None, :, None]  # (members, examples, tokens, 1)
            told = each[-1:] + SCALE * more[None, ..., 0]
            # What the last row wants is no reason for the others: they do not know what it knows.
            last = summed(torch.cat([each[:-1].detach(), told]), *self.limits)[-1:]
            return torch.cat([summed(each[:-1], *self.limits), last])
        return summed(each, *self.limits) if self.sums else each

    def _together(
        self, states: Mapping[int, Tensor], about: Sequence[Tensor], valid: Tensor, members: slice
    ) -> Tensor:
        """The same where all networks have one size: a few large products instead of many small ones."""
        gates = [self.gate(i) for i in range(len(self.rows))]
        every = members == ALL or self.members == 1

        def stacked(pick: Callable[[GateNetwork], Tensor]) -> Tensor:
            """(members, rows, ...)"""
            return torch.stack([pick(gate) if every else pick(gate)[members] for gate in gates], dim=1)

        mean, scale = (torch.stack([getattr(g, name) for g in gates]) for name in ("mean", "scale"))
        weight = normed(stacked(lambda g: g.hidden.size), stacked(lambda g: g.hidden.direction))
        weight = weight / scale[:, None]  # (members, rows, hidden, width)
        total = -(weight @ mean[..., None]).mT  # (members, rows, 1, hidden)
        widths = [states[site].shape[-1] for site in self.rows[0].reads]
        for k, part in enumerate(weight.split(widths, dim=3)):
            sites = [row.reads[k] for row in self.rows]
            flat = {site: states[site].flatten(1, 2) for site in sites}  # (members, tokens of all, width)
            if len(flat) == 1:
                found = flat[sites[0]] @ part.flatten(1, 2).mT  # (members, tokens of all, rows * hidden)
                total = total + found.unflatten(2, part.shape[1:3]).transpose(1, 2)
            else:
                total = total + torch.stack([flat[site] for site in sites], dim=1) @ part.mT
        units = total.unflatten(2, valid.shape[1:])  # (members, rows, examples, tokens, hidden)
        units = units + torch.stack(list(about), dim=1) if about else units
        units = beside_others(units, valid[:, None], gates[0].compared).flatten(2, 3)
        units = torch.tanh(units + stacked(lambda g: g.hidden_bias)[:, :, None])
        out = normed(stacked(lambda g: g.out.size), stacked(lambda g: g.out.direction))
        raw = (units @ out.mT)[..., 0]  # (members, rows, tokens of all)
        logits = gates[0].logit(stacked(lambda g: g.bias)[..., None], raw)
        return logits.unflatten(2, valid.shape[1:]).transpose(0, 1)

    def log_keep(self, states: Mapping[int, Tensor], valid: Tensor) -> Tensor:
        """log P(kept) at every row: (rows, examples, tokens)."""
        each = [self._log_keep(states, valid, member) for member in range(self.members)]
        return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))

    def _log_keep(self, states: Mapping[int, Tensor], valid: Tensor, member: int) -> Tensor:
        gates = HardConcrete(self.logits(states, valid, member), validate_args=False)
        return joined(gates.log_prob_nonzero(), self.multiplies)


def _by_group(group: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Numbers gathered by group: which ones each group has, (count, size of the largest), filled up with the
    first of all; and where each number is in that table read row after row."""
    found = [(group == one).nonzero()[:, 0] for one in range(count)]
    size = max(len(one) for one in found)
    table = torch.stack([F.pad(one, (0, size - len(one))) for one in found])
    place = torch.empty_like(group)
    for row, one in enumerate(found):
        place[one] = row * size + torch.arange(len(one))
    return table, place


def summed(each: Tensor, low: float, high: float) -> Tensor:
    """Logits that fall from row to row: `high` + the sum of log sigmoid(each) up to the row; at least `low`.

    A row can only add to what speaks against a token, so that what is dropped stays dropped. Unlike gates
    that multiply, rows that each see a little less than enough are together enough.
    """
    return inward(high + F.logsigmoid(each).cumsum(0), low, high)


class _Inward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(value)
        ctx.limits = low, high
        return value.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (value,), (grad,), (low, high) = ctx.saved_tensors, grads, ctx.limits
        outward = ((value > high) & (grad < 0)) | ((value < low) & (grad > 0))
        return torch.where(outward, 0.0, grad), None, None


def inward(value: Tensor, low: float, high: float) -> Tensor:
    """Values between the limits, with gradients that only ever lead back inside.

    A gate at the limit is all but certain, and what would make it more so has no effect; what would change
    its mind still has one. A tanh has none by then: gates that were open beside one that must stay open, such
    as [SEP] beside [CLS] at the last site, never shut.
    """
    return _Inward.apply(value, low, high)


OLDER = {
    "hidden.parametrizations.weight.original0": "hidden.size",
    "hidden.parametrizations.weight.original1": "hidden.direction",
    "hidden.bias": "hidden_bias",
    "out.parametrizations.weight.original0": "out.size",
    "out.parametrizations.weight.original1": "out.direction",
    "bias": "bias",
}
"""what a gate network's weights were called when there was one member"""


def with_members(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a probe, those of older lenses as they are called and shaped now."""
    if not any("parametrizations" in name for name in tensors):
        return dict(tensors)
    found = {}
    for name, value in tensors.items():
        start, _, what = name.partition(".")
        row, _, what = what.partition(".")
        changed = start == "gates" and what in OLDER
        found[f"gates.{row}.{OLDER[what]}" if changed else name] = value[None] if changed else value
    return found


class FreeMasks(nn.Module):
    """The non-amortised form: a logit of its own for every token of every text, and a baseline a text.

    Logits count as within [-10, 10], as in the published code.
    """

    def __init__(self, examples: int, tokens: int, baseline: Tensor, learn_baseline: bool) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((examples, tokens), OPEN))
        self.baselines = nn.ParameterList([nn.Parameter(baseline.clone(), requires_grad=learn_baseline)])

    def logits(self) -> Tensor:
        """(examples, tokens)"""
        return self.values.clamp(-10, 10)


def joined(log_keep: Tensor, votes: bool) -> Tensor:
    """Votes multiply over rows: (rows, ...) -> (rows, ...)."""
    return log_keep.cumsum(0) if votes else log_keep


def sample_keep(
    logits: Tensor, chosen: Tensor, votes: bool, uniform: Tensor, straight: bool = False
) -> tuple[Tensor, Tensor]:
    """Sampled gates and log P(kept) of each example's chosen row: two tensors (examples, tokens).

    Args:
        logits: (rows, examples, tokens)
        chosen: (examples,) row numbers
        votes: whether the gates of all rows up to the chosen one multiply
        uniform: (rows, examples, tokens) noise in (0, 1)
        straight: see `sample`
    """
    each = torch.arange(logits.shape[1], device=logits.device)
    if not votes:
        gate = HardConcrete(logits[chosen, each], validate_args=False)
        return sample(gate, uniform[chosen, each], straight), gate.log_prob_nonzero()
    gate = HardConcrete(logits, validate_args=False)
    used = torch.arange(len(logits), device=logits.device)[:, None] <= chosen  # (rows, examples)
    gates = torch.where(used[..., None], sample(gate, uniform, straight), 1.0)
    log_keep = torch.where(used[..., None], gate.log_prob_nonzero(), 0.0)
    return gates.prod(0), log_keep.sum(0)


def sample(gate: HardConcrete, uniform: Tensor, straight: bool) -> Tensor:
    """Sampled gates. Nearly all of them are 0 or 1, and through these no gradient passes; if `straight`, it
    passes to P(kept) instead, as if this were the sample, so that every token teaches its gate at every
    step (Bengio et al. 2013)."""
    if not straight:
        return gate.rsample(uniform=uniform)
    kept = gate.prob_nonzero()
    with torch.no_grad():
        offset = gate.rsample(uniform=uniform) - kept
    return kept + offset


def mix(keep: Tensor, state: Tensor, baseline: Tensor) -> Tensor:
    """keep * state + (1 - keep) * baseline (section 2): keep (examples, tokens), state (..., width)."""
    gate = keep[..., None].to(state.dtype)
    return gate * state + (1 - gate) * baseline_at(baseline, state.shape[-2]).to(state.dtype)


def baseline_at(baseline: Tensor, tokens: int) -> Tensor:
    """A baseline for texts of so many tokens: a table by place (places, width) becomes (tokens, width), its
    last row standing for all places beyond it; others are as they are."""
    if baseline.dim() != 2:
        return baseline
    return baseline[torch.arange(tokens, device=baseline.device).clamp(max=len(baseline) - 1)]
