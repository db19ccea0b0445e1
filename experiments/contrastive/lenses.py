"""What a lens for prompts keeps: fitted with the defaults, on prompts that no figure is measured with.

The prompts are the contrastive ones, or questions about reviews and about news. No contrastive prompt to fit
on is the beginning of a measured one, or begins with one: in a causal model they would have the states of a
whole prompt in common. Single words and sentence frames are the same in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from masklens import Attribution, DiffMask, Subject
from masklens.bootstrap import interval
from masklens.diffmask.judging import masked_outputs
from masklens.diffmask.networks import THRESHOLD
from masklens.diffmask.texts import FrozenTexts

from ..labelled import read_test, read_train
from ..parts import Found
from ..sst.treebank import read_split
from .prompts import Prompt, alignment, evidence_tokens, read_prompts

TRAIN, VALIDATION = 1000, 100
"""prompts to fit on, of which some are set aside to calibrate on"""
MARGIN = 0.1
EVERY = 10**6
QUESTIONS = {
    "reviews": ("sst2", "Review: {}\nIs this review positive or negative? It is"),
    "news": ("agnews", "News: {}\nThe topic (World, Sports, Business or Technology) is"),
}
"""data sets whose texts are asked about, each with its question"""
DEPTHS = (0, 0.25, 0.5, 0.75, 1)
"""these prompts are long, so their lenses are for sites at these shares of the depth"""


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


class Sets(NamedTuple):
    """Prompts to fit on, to calibrate on and to measure with."""

    learned: list[str]
    validation: list[str]
    measured: list[str]


def contrastive_sets(data: Path, measured: Mapping[str, Sequence[Prompt]], seed: int) -> Sets:
    others = other_prompts(data, measured, TRAIN, seed)
    aside = len(others) * VALIDATION // TRAIN
    texts = [prompt.prefix for some in measured.values() for prompt in some]
    return Sets(others[aside:], others[:aside], texts)


def question_sets(data: Path, name: str, count: int, seed: int) -> Sets:
    """Questions about texts of a data set; `count` of its test texts are measured. A margin holds for texts
    like those that a lens is calibrated on, so all reviews are sentences: none is a phrase of SST-2's
    training set."""
    dataset, question = QUESTIONS[name]
    train = read_split(data, dataset, "train") if dataset == "sst2" else read_train(data, dataset)
    learned = [question.format(text) for text in train.sample(TRAIN, seed).texts]
    measured = [question.format(text) for text in read_test(data, dataset).sample(count, seed).texts]
    return Sets(learned[VALIDATION:], learned[:VALIDATION], measured)


def fitted(
    subject: Subject,
    sets: Sets,
    over: str,
    seed: int,
    steps: int | None,
    folder: Path,
    sites: Sequence[int] | None = None,
) -> DiffMask:
    """A lens with the defaults; its fit goes on from a checkpoint in the folder."""
    settings: dict[str, Any] = {} if steps is None else {"steps": steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is over the margin is in the table
        return DiffMask.fit(
            subject,
            sets.learned,
            over,
            MARGIN,
            seed,
            sites,
            held_out=sets.measured,
            validation=sets.validation,
            folder=folder,
            show_progress=True,
            **settings,
        )


def on_contrastive(
    subject: Subject,
    data: Path,
    measured: Mapping[str, Sequence[Prompt]],
    over: str,
    seed: int,
    steps: int | None,
    folder: Path,
) -> Found:
    """A lens over inputs or states, and what it drops and keeps of the measured prompts."""
    sets = contrastive_sets(data, measured, seed)
    lens = fitted(subject, sets, over, seed, steps, folder)
    prompts = [prompt for some in measured.values() for prompt in some]
    return {**about(lens, sets, seed), **on_evidence(prompts, lens.explain(sets.measured))}


def on_questions(
    subject: Subject, data: Path, name: str, count: int, seed: int, steps: int | None, folder: Path
) -> Found:
    """A lens over inputs at DEPTHS of the depth, for questions about the texts of a data set."""
    sets, last = question_sets(data, name, count, seed), len(subject.sites) - 1
    sites = sorted({subject.sites[round(share * last)] for share in DEPTHS})
    return about(fitted(subject, sets, "inputs", seed, steps, folder, sites), sets, seed)


def about(lens: DiffMask, sets: Sets, seed: int) -> Found:
    return {
        "texts": len(sets.learned),
        "measured": len(sets.measured),
        "example": sets.measured[0],
        "diagnostics": [one._asdict() for one in lens.diagnostics],
        "random": at_random(lens, sets.measured, seed),
        "lens": asdict(lens.settings),
    }


@torch.no_grad()
def at_random(lens: DiffMask, texts: Sequence[str], seed: int) -> list[float]:
    """The mean divergence at each site if as many tokens of every text are dropped, drawn at random."""
    frozen = FrozenTexts(lens.subject, texts, lens.probe.reads, keep_bytes=0)
    generator, moves = torch.Generator().manual_seed(seed), []
    for rows in frozen.chunks():
        drawn = frozen.draw(rows)
        kept = (
            lens.keep(drawn.states(), drawn.reader) > THRESHOLD
        ) & drawn.removable  # (sites, texts, tokens)
        others = as_many(kept, drawn.removable, generator)
        outputs = masked_outputs(lens.probe, frozen, drawn, dict(enumerate(others)))
        moves.append(torch.stack([lens.subject.task.divergence(drawn.output, one) for one in outputs]))
    return torch.cat(moves, dim=1).mean(1).tolist()


def as_many(kept: Tensor, removable: Tensor, generator: torch.Generator) -> Tensor:
    """Masks that keep as many of the removable tokens as these (..., tokens), drawn at random."""
    noise = torch.rand(kept.shape, generator=generator).to(kept.device)
    order = noise.masked_fill(~removable, 2).argsort(-1).argsort(-1)
    return order < kept.sum(-1, keepdim=True)


def on_evidence(prompts: Sequence[Prompt], made: Sequence[Attribution]) -> Found:
    """At each site, the share of the evidence and of the other tokens that is kept, and the mean reciprocal
    rank of the evidence, with intervals over prompts."""
    shares, ranks = [], []
    for prompt, one in zip(prompts, made, strict=True):
        evidence, counted = evidence_tokens(prompt, one), ~np.array(one.special)
        other = counted & ~evidence
        if evidence.any() and other.any():
            kept = one.scores > THRESHOLD  # (sites, tokens)
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
