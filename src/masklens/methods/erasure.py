"""Erasure: the smallest sets of tokens that are enough for the model's prediction, found by search."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from ..errors import MethodError
from ..model.masking import Masked
from .baselines import absent_state
from .batching import masked_at, site_by_site
from .recurrent import MOST_TOKENS, Recurrence, find_recurrence, members, read
from .registry import Request, check_choice, check_count, register

SHORT = 12
"""for a GRU: up to so many tokens, searching the texts together is faster than searching them one by one with
shared prefixes"""


@dataclass(frozen=True)
class Rule:
    """When a set of tokens is enough, and how long to search for one."""

    criterion: str
    margin: float
    smallest: int
    beam: int | None
    budget: int
    internal_batch_size: int | None

    def __post_init__(self) -> None:
        check_choice("criterion", self.criterion, "argmax", "divergence")
        if self.smallest < 0:
            raise MethodError(f"smallest is {self.smallest}; it must be at least 0")
        check_count("budget", self.budget)
        if self.beam is not None:
            check_count("beam", self.beam)


@register(
    "erasure",
    summary="The smallest sets of tokens that keep the prediction, by exact or beam search",
    cost="the number of sets tried: up to 2^tokens, at most `budget` a text",
    paper="Li et al. 2016; De Cao et al. 2020, section 2",
    needs="forward passes",
    merge="max",
    exempt={"target": "it explains the prediction: a set is enough when the model still predicts the same"},
    quick={"smallest": 0, "budget": 200},
    baseline="zero",
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
    """The share of the smallest sufficient sets that contain a token.

    All sets of `smallest` tokens are tried, then all sets with one more token, until some are enough. Every
    set of that size that is enough is an optimum. Special tokens are always kept and score 0. Tokens outside
    the set are replaced at the site by the baseline (zero unless `baselines` says otherwise).

    Args:
        criterion: "argmax" (the prediction is the same) or "divergence" (it is at most `margin` nats away).
        smallest: the size to start from. With 0 the empty set may be enough, and then all scores are zero.
        beam: for long texts: keep only that many sets of each size, those nearest to the whole text's output,
            and extend each by one token. The result is enough, but need not be the smallest set.
        budget: the most sets to try for a text. A search that would need more stops, warns, and returns the
            whole text, the smallest set known to be enough.
        internal_batch_size: sets that go through the model at once.

    The settings of the result hold the size and the number of the optima, as `size@SITE` and `optima@SITE`.
    For a one-layer GRU classifier the search shares prefixes between sets, which is faster and gives the same
    result.
    """
    rule = Rule(criterion, margin, smallest, beam, budget, internal_batch_size)

    with torch.no_grad():
        return site_by_site(request, lambda part, site: _site(part, site, rule))


def _site(request: Request, site: int, rule: Rule) -> Tensor:
    """The share of optima that keep each token, at one site: (examples, tokens)."""
    state = request.states()[site]
    baseline = absent_state(request, site, state)
    free = request.batch.valid & ~request.batch.special
    searches = [Search(free[i].nonzero()[:, 0].tolist(), rule) for i in range(len(free))]
    lengths = [len(tokens) for tokens in request.batch.tokens]
    long = [i for i, s in enumerate(searches) if len(s.free) > SHORT and lengths[i] <= MOST_TOKENS]
    recurrence = find_recurrence(request, site, state, baseline) if long and rule.beam is None else None
    if recurrence is not None:
        for i in long:
            _search_prefixes(request, recurrence, i, state[i], baseline[i], searches[i])
    _search_together(request, masked_at(request, site, baseline, rule.internal_batch_size), searches)
    scores = torch.zeros(free.shape, device=state.device, dtype=torch.float32)
    for i, search in enumerate(searches):
        scores[i] = search.share(len(scores[i])).to(scores)
        request.notes.setdefault(i, {}).update(search.notes(site, str(request.batch.texts[i])))
    return scores


@dataclass
class Search:
    """The state of the search for one text's smallest sets."""

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
        """The sets of the current size to try; none if the budget does not suffice."""
        if self.rule.beam is None:
            there_are = self.afford(comb(len(self.free), self.size))
            return list(combinations(self.free, self.size)) if there_are else []
        grown = {tuple(sorted((*kept, t))) for kept in self.frontier for t in self.free if t not in kept}
        sets: list[tuple[int, ...]] = sorted(grown) if self.size else [()]
        return sets if self.afford(len(sets)) else []

    def afford(self, count: int) -> bool:
        """Whether the budget allows `count` more sets; if not, the search ends."""
        if self.tried + count > self.rule.budget:
            self.done = True
            return False
        self.tried += count
        return True

    def learn(self, sets: list[tuple[int, ...]], verdict: Tensor) -> None:
        """Take in the verdict on the sets, and go on to the next size."""
        enough, divergence = verdict.unbind(1)
        if self.size >= self.rule.smallest or self.size == len(self.free):
            self.optima = [kept for kept, holds in zip(sets, enough.tolist(), strict=True) if holds]
        if self.rule.beam is not None:
            nearest = divergence.argsort(stable=True)[: self.rule.beam].tolist()
            self.frontier = [sets[k] for k in nearest]
        self.done = bool(self.optima) or self.size == len(self.free)
        self.size += not self.done

    def share(self, tokens: int) -> Tensor:
        """The share of optima that keep each token: (tokens,)."""
        counts = torch.zeros(tokens, dtype=torch.float32)
        for kept in self.optima or [tuple(self.free)]:
            counts[list(kept)] += 1
        return counts / max(1, len(self.optima))

    def notes(self, site: int, text: str) -> dict[str, int | str]:
        """The notes about the search in the settings of the result."""
        if self.optima or not self.free:
            return {f"size@{site}": self.size, f"optima@{site}": len(self.optima)}
        stopped = f"stopped before size {self.size}: {self.tried} sets tried, budget {self.rule.budget}"
        warnings.warn(
            f"erasure {stopped} for {text[:60]!r}; all tokens count as kept. Raise budget=, or give beam=",
            stacklevel=2,
        )
        return {f"erasure@{site}": stopped}


def _search_together(request: Request, masked: Masked, searches: list[Search]) -> None:
    """Search all texts through the model, the sets of all texts in common batches."""
    rule = searches[0].rule
    while True:
        tried = {i: search.proposals() for i, search in enumerate(searches) if not search.done}
        tried = {i: sets for i, sets in tried.items() if sets}
        if not tried:
            return
        rows = torch.tensor([i for i, sets in tried.items() for _ in sets])
        keep = request.batch.special[rows]  # (sets, tokens): special tokens stay
        for row, kept in zip(keep, (kept for sets in tried.values() for kept in sets), strict=True):
            row[list(kept)] = True
        found = masked.read(rows, keep, lambda some, _, output: _verdict(request, rule, some, output))
        parts = found.split([len(sets) for sets in tried.values()])
        for (i, sets), verdict in zip(tried.items(), parts, strict=True):
            searches[i].learn(sets, verdict)


def _verdict(request: Request, rule: Rule, rows: Tensor, output: Tensor) -> Tensor:
    """Whether the sets kept in the texts `rows` are enough (1 or 0), and the divergence: (sets, 2)."""
    task, reference = request.subject.task, request.reference[rows]
    divergence = task.divergence(reference, output)
    if rule.criterion == "divergence":
        enough = divergence <= rule.margin
    else:
        enough = task.agrees(reference, output, request.batch.take(rows.tolist()))
    return torch.stack([enough.to(divergence), divergence], dim=1)


def _search_prefixes(
    request: Request, recurrence: Recurrence, row: int, state: Tensor, baseline: Tensor, search: Search
) -> None:
    """Search one text of a GRU classifier. A prefix is computed once for all sets that share it."""
    valid, rule = request.batch.valid[row], search.rule
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
        rows = torch.full((len(level.codes),), row, device=places.device)
        output = read(recurrence, level.hidden, request, rows.tolist())
        enough = _verdict(request, rule, rows, output)[:, 0] == 1
        optima = members(level.codes[enough], len(places)) & free
        search.optima = [tuple(places[kept].tolist()) for kept in optima]
        if search.optima:
            search.done = True
            return
