"""Erasure: the smallest sets of tokens that are enough for the model's prediction, found by search."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import MethodError
from . import Request, register
from .baselines import absent_state
from .batching import by_length, even, rows_at_once
from .gradient import check_count
from .recurrent import MOST_TOKENS, Recurrence, find_recurrence, members, read

SHORT = 12
"""up to so many tokens, texts searched together through the model are quicker than one by one with shared
prefixes"""


@dataclass(frozen=True)
class Rule:
    """When a subset of tokens counts as enough, and how long to look for one."""

    criterion: str
    margin: float
    smallest: int
    beam: int | None
    budget: int
    internal_batch_size: int | None

    def __post_init__(self) -> None:
        if self.criterion not in ("argmax", "divergence"):
            raise MethodError(f"criterion={self.criterion!r} is not known; give 'argmax' or 'divergence'")
        if self.smallest < 0:
            raise MethodError(f"smallest is {self.smallest}; it must be at least 0")
        check_count("budget", self.budget)
        if self.beam is not None:
            check_count("beam", self.beam)


class Verdict(NamedTuple):
    """Whether subsets are enough, and how far the output moved: (subsets,) each."""

    enough: Tensor
    divergence: Tensor


@register(
    "erasure",
    summary="The smallest sets of tokens that keep the prediction, by exact or beam search",
    cost="the number of sets tried: up to 2^tokens, at most `budget` a text",
    paper="Li et al. 2016; De Cao et al. 2020, section 2",
    needs="forward passes",
    merge="max",
    exempt={"target": "it explains the prediction: a set is enough when the model still predicts the same"},
    quick={"smallest": 0, "budget": 200},
)
def erasure(
    request: Request,
    *,
    criterion: str = "argmax",
    margin: float = 0.1,
    smallest: int = 1,
    beam: int | None = None,
    budget: int = 100_000,
    internal_batch_size: int | None = None,
) -> Tensor:
    """How often a token is in a smallest set that is enough, among all such sets.

    All sets of `smallest` tokens are tried, then all of one more, until some are enough; every set of that
    size that is enough is an optimum. Special tokens are always kept and score 0. Tokens outside the set are
    replaced at the site by the baseline (zero unless `baselines` says otherwise).

    Args:
        criterion: "argmax" (the prediction is the same) or "divergence" (it is at most `margin` nats away).
        smallest: the size to start from; with 0 the empty set may be the answer, and all scores zero.
        beam: for long texts: keep only that many sets of each size, those nearest to the whole text's output,
            and grow each by one token. What it finds is enough, but need not be smallest.
        budget: the most sets to try for a text. A search that would go beyond stops, warns, and returns the
            whole text, the smallest set known to be enough.
        internal_batch_size: sets that go through the model at once.

    The settings of the result hold the size and the number of the optima, as `size@SITE` and `optima@SITE`.
    A one-layer GRU classifier is searched with shared prefixes, which gives the same result sooner.
    """
    rule = Rule(criterion, margin, smallest, beam, budget, internal_batch_size)

    def score(part: Request) -> Tensor:
        return torch.stack([_site(part, site, part.states()[site], rule) for site in part.sites], dim=1)

    with torch.no_grad():
        return by_length(request, score)


def _site(request: Request, site: int, state: Tensor, rule: Rule) -> Tensor:
    """The share of optima that keep each token, at one site: (examples, tokens)."""
    baseline = absent_state(request, site, state)
    free = request.batch.valid & ~request.batch.special
    searches = [Search(free[i].nonzero()[:, 0].tolist(), rule) for i in range(len(free))]
    long = [
        i
        for i, s in enumerate(searches)
        if len(s.free) > SHORT and len(request.batch.tokens[i]) <= MOST_TOKENS
    ]
    recurrence = find_recurrence(request, site, state, baseline) if long and rule.beam is None else None
    if recurrence is not None:
        for i in long:
            _search_prefixes(request, recurrence, i, state[i], baseline[i], searches[i], rule)
    _search_together(request, site, state, baseline, searches, rule)
    scores = torch.zeros(free.shape, device=state.device)
    for i, search in enumerate(searches):
        scores[i] = search.share(len(scores[i])).to(scores)
        request.notes.setdefault(i, {}).update(search.notes(site, str(request.batch.texts[i])))
    return scores


@dataclass
class Search:
    """Where the search for one text's smallest sets stands."""

    free: list[int]
    """the tokens that may go"""
    rule: Rule
    size: int = 0
    tried: int = 0
    frontier: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    """the sets that a beam search grows"""
    optima: list[tuple[int, ...]] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.done = not self.free
        if self.rule.beam is None:
            self.size = min(self.rule.smallest, len(self.free))

    def proposals(self) -> list[tuple[int, ...]]:
        """The sets of the present size to try: none when there is no budget for them."""
        if self.rule.beam is None:
            return (
                list(combinations(self.free, self.size))
                if self.afford(comb(len(self.free), self.size))
                else []
            )
        sets = self._grown()
        return sets if self.afford(len(sets)) else []

    def _grown(self) -> list[tuple[int, ...]]:
        if self.size == 0:
            return [()]
        grown = {tuple(sorted((*kept, t))) for kept in self.frontier for t in self.free if t not in kept}
        return sorted(grown)

    def afford(self, count: int) -> bool:
        """Whether the budget has room for so many more; if not, the search is over."""
        if self.tried + count > self.rule.budget:
            self.done = True
            return False
        self.tried += count
        return True

    def learn(self, sets: list[tuple[int, ...]], verdict: Verdict) -> None:
        """Take what was found out about the proposals and go on to the next size."""
        if self.size >= self.rule.smallest or self.size == len(self.free):
            self.optima = [kept for kept, enough in zip(sets, verdict.enough.tolist(), strict=True) if enough]
        if self.rule.beam is not None:
            nearest = verdict.divergence.argsort(stable=True)[: self.rule.beam].tolist()
            self.frontier = [sets[k] for k in nearest]
        self.done = bool(self.optima) or self.size == len(self.free)
        self.size += not self.done

    def share(self, tokens: int) -> Tensor:
        """The share of optima that keep each token: (tokens,)."""
        counts = torch.zeros(tokens)
        for kept in self.optima or [tuple(self.free)]:
            counts[list(kept)] += 1
        return counts / max(1, len(self.optima))

    def notes(self, site: int, text: str) -> dict[str, int | str]:
        """What the result's settings say about the search."""
        if self.optima or not self.free:
            return {f"size@{site}": self.size, f"optima@{site}": len(self.optima)}
        stopped = f"stopped before size {self.size}: {self.tried} sets tried, budget {self.rule.budget}"
        warnings.warn(
            f"erasure {stopped} for {text[:60]!r}; all tokens count as kept. Raise budget=, or give beam=",
            stacklevel=2,
        )
        return {f"erasure@{site}": stopped}


def _search_together(
    request: Request, site: int, state: Tensor, baseline: Tensor, searches: list[Search], rule: Rule
) -> None:
    """Search all texts through the model, the sets of all texts in common batches."""
    while not all(search.done for search in searches):
        tried = {i: search.proposals() for i, search in enumerate(searches) if not search.done}
        tried = {i: sets for i, sets in tried.items() if sets}
        rows = [i for i, sets in tried.items() for _ in sets]
        every = [kept for sets in tried.values() for kept in sets]
        if not rows:
            return
        verdict = _judge(request, site, state, baseline, rows, every, rule)
        ends = torch.tensor([len(sets) for sets in tried.values()]).cumsum(0).tolist()
        for (i, sets), end in zip(tried.items(), ends, strict=True):
            searches[i].learn(sets, Verdict(*(part[end - len(sets) : end] for part in verdict)))


def _judge(
    request: Request,
    site: int,
    state: Tensor,
    baseline: Tensor,
    rows: list[int],
    sets: list[tuple[int, ...]],
    rule: Rule,
) -> Verdict:
    """Run the model with each set of tokens kept in its text."""
    fixed = ~request.batch.valid | request.batch.special
    found = []
    size = rows_at_once(request.batch, state.shape[-1], rule.internal_batch_size)
    for part in _slices(len(rows), even(len(rows), size)):
        some = rows[part]
        keep = fixed[some]
        for row, kept in zip(keep, sets[part], strict=True):
            row[list(kept)] = True
        edited = torch.where(keep[:, :, None], state[some], baseline[some])
        output = request.subject.run(request.batch.take(some), replace={site: edited}).output
        found.append(_verdict(request, some, output, rule))
    return Verdict(torch.cat([v.enough for v in found]), torch.cat([v.divergence for v in found]))


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _verdict(request: Request, rows: list[int], output: Tensor, rule: Rule) -> Verdict:
    task, reference = request.subject.task, request.reference[rows]
    divergence = task.divergence(reference, output)
    if rule.criterion == "divergence":
        return Verdict(divergence <= rule.margin, divergence)
    return Verdict(task.agrees(reference, output, request.batch.take(rows)), divergence)


def _search_prefixes(
    request: Request,
    recurrence: Recurrence,
    row: int,
    state: Tensor,
    baseline: Tensor,
    search: Search,
    rule: Rule,
) -> None:
    """Search one text of a GRU classifier, prefixes computed once for all sets that share them."""
    valid = request.batch.valid[row]
    places = valid.nonzero()[:, 0]
    free = torch.isin(places, torch.tensor(search.free, device=places.device))
    levels = recurrence.levels(state[valid], baseline[valid], free)
    for size in range(len(search.free) + 1):
        search.size = size
        if size >= rule.smallest and not search.afford(comb(len(search.free), size)):
            return
        level = next(levels)
        if size < min(rule.smallest, len(search.free)):
            continue
        rows = [row] * len(level.codes)
        verdict = _verdict(
            request, rows, read(request.subject, recurrence, level.hidden, request, rows), rule
        )
        optima = members(level.codes[verdict.enough], len(places)) & free
        search.optima = [tuple(places[kept].tolist()) for kept in optima]
        if search.optima:
            search.done = True
            return
