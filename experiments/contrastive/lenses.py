"""What a lens for prompts keeps: fitted with the defaults, on prompts that no figure is measured with.

No prompt to fit on is the beginning of a measured one, or begins with one: in a causal model they would have
the states of a whole prompt in common. Single words and sentence frames are the same in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from masklens import Attribution, DiffMask, Subject
from masklens.bootstrap import interval

from ..parts import Found
from .prompts import Prompt, alignment, evidence_tokens, read_prompts

TRAIN, VALIDATION = 1000, 100
"""prompts to fit on, of which some are set aside to calibrate on"""
MARGIN = 0.1
EVERY = 10**6
KEPT = 0.5


def other_prompts(data: Path, measured: Mapping[str, Sequence[Prompt]], count: int, seed: int) -> list[str]:
    """The beginnings of `count` prompts, as many of each set as there are, none of them measured."""
    taken = [prompt.prefix.split() for some in measured.values() for prompt in some]
    begun = {tuple(words[:n]) for words in taken for n in range(1, len(words) + 1)}
    whole = {tuple(words) for words in taken}
    every = [_free(some, begun, whole) for some in read_prompts(data, EVERY, seed).values()]
    in_turn = [text for texts in zip_longest(*every) for text in texts if text is not None]
    return in_turn[:count]


def _free(prompts: Sequence[Prompt], begun: Set[tuple[str, ...]], whole: Set[tuple[str, ...]]) -> list[str]:
    """The prompts that do not begin as a measured one does (`begun`), nor with all of one (`whole`)."""
    apart = (prompt.prefix for prompt in prompts if not _shares(tuple(prompt.prefix.split()), begun, whole))
    return list(dict.fromkeys(apart))


def _shares(words: tuple[str, ...], begun: Set[tuple[str, ...]], whole: Set[tuple[str, ...]]) -> bool:
    return words in begun or any(words[:n] in whole for n in range(1, len(words)))


def fitted(
    subject: Subject,
    data: Path,
    measured: Mapping[str, Sequence[Prompt]],
    over: str,
    seed: int,
    steps: int | None,
) -> Found:
    """A lens over inputs or states, and what it drops and keeps of the measured prompts."""
    others = other_prompts(data, measured, TRAIN, seed)
    prompts = [prompt for some in measured.values() for prompt in some]
    texts, aside = [prompt.prefix for prompt in prompts], len(others) * VALIDATION // TRAIN
    settings: dict[str, Any] = {} if steps is None else {"steps": steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is over the margin is in the table
        lens = DiffMask.fit(
            subject,
            others[aside:],
            over,
            MARGIN,
            seed,
            held_out=texts,
            validation=others[:aside],
            **settings,
        )
    return {
        "texts": len(others) - aside,
        "measured": len(prompts),
        "diagnostics": [one._asdict() for one in lens.diagnostics],
        "lens": asdict(lens.settings),
        **on_evidence(prompts, lens.explain(texts)),
    }


def on_evidence(prompts: Sequence[Prompt], made: Sequence[Attribution]) -> Found:
    """At each site, the share of the evidence and of the other tokens that is kept, and the mean reciprocal
    rank of the evidence, with intervals over prompts."""
    shares, ranks = [], []
    for prompt, one in zip(prompts, made, strict=True):
        evidence, counted = evidence_tokens(prompt, one), ~np.array(one.special)
        other = counted & ~evidence
        if evidence.any() and other.any():
            kept = one.scores > KEPT  # (sites, tokens)
            shares.append([kept[:, evidence].mean(1), kept[:, other].mean(1)])
            ranks.append(alignment(one.scores, evidence, counted)[0])
    evidence_kept, other_kept = np.array(shares).swapaxes(0, 1)  # (prompts, sites) each
    return {
        "prompts": len(ranks),
        "evidence_kept": evidence_kept.mean(0).tolist(),
        "other_kept": other_kept.mean(0).tolist(),
        "difference_interval": [list(interval(column)) for column in (evidence_kept - other_kept).T],
        "mrr": np.mean(ranks, 0).tolist(),
    }
