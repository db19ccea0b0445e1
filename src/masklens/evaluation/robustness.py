"""Sanity checks of methods: does an explanation depend on the weights, and not on seed, padding or spaces?

A check takes `explain`, a function from a subject and texts to attributions:

    check = randomisation(subject, texts, lambda s, t: ml.explain(s, t, "gradient"))
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from ..attribution import Attribution, Text
from ..errors import MethodError
from ..model.subject import Subject
from ..records.layers import site_name
from .agreement import mean_pairwise, rank_agreement
from .ranking import is_flat, own_scores

Explainer = Callable[[Subject, Sequence[Text]], Sequence[Attribution]]


class ExplanationWarning(UserWarning):
    """A set of attributions that cannot be an explanation."""


@dataclass(frozen=True)
class Stage:
    """One step of the randomisation check."""

    name: str
    """the part of the model that was randomised (in a cascade: the last of the parts)"""
    agreement: float
    """mean rank correlation with the explanation of the original model; it should be near 0"""


def randomisation(
    subject: Subject,
    texts: Sequence[Text],
    explain: Explainer,
    kind: Literal["cascading", "independent"] = "cascading",
    seed: int = 0,
) -> list[Stage]:
    """Explain the same texts after the model's weights were shuffled (Adebayo et al. 2018).

    "cascading" shuffles from the head down to the embeddings, part after part; "independent" each part alone.
    An explanation that stays the same does not depend on what the model has learned. The user's model is not
    touched: a copy is shuffled.
    """
    if kind not in ("cascading", "independent"):
        raise MethodError(f"no randomisation {kind!r}; there are 'cascading' and 'independent'")
    original = explain(subject, texts)
    changed = copy_of(subject)
    stages = []
    for name, parameters in parts(changed):
        shuffle(parameters, seed)
        stages.append(Stage(name, _mean(rank_agreement(original, explain(changed, texts)))))
        if kind == "independent":
            changed.module.load_state_dict(subject.module.state_dict())
    return stages


def copy_of(subject: Subject) -> Subject:
    """A subject with its own copy of the module; tokenizer and encoder are shared."""
    shared = (subject.tokenizer, subject.task, subject._encode)
    return copy.deepcopy(subject, {id(one): one for one in shared})


def parts(subject: Subject) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """The model's parameters from the head down: head, each block, embeddings."""
    blocks = {f"block {k}": p.module for k, p in enumerate(subject.blocks.values(), start=1)}
    owner = {id(p): name for name, block in blocks.items() for p in block.parameters()}
    groups: dict[str, list[nn.Parameter]] = {}
    for p in subject.module.parameters():
        inside = any(name in groups for name in blocks)
        name = owner.get(id(p), "head" if inside or not blocks else "embeddings")
        groups.setdefault(name, []).append(p)
    yield from reversed(groups.items())


@torch.no_grad()
def shuffle(parameters: Sequence[nn.Parameter], seed: int) -> None:
    """Shuffle the entries of each parameter: their distribution stays, and what was learned is lost."""
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        order = torch.randperm(p.numel(), generator=generator).to(p.device)
        p.copy_(p.flatten()[order].reshape(p.shape))


@dataclass(frozen=True)
class Stability:
    """How much explanations of the same texts differ."""

    agreement: float
    """mean rank correlation over all pairs"""
    deviation: float
    """mean over tokens of the standard deviation of their scores"""


def seed_stability(
    texts: Sequence[Text],
    explain: Callable[[Sequence[Text], int], Sequence[Attribution]],
    seeds: Sequence[int],
) -> Stability:
    """Explain with several seeds; `explain` takes the texts and a seed."""
    if len(seeds) < 2:
        raise MethodError(f"{len(seeds)} seeds cannot be compared; give at least two")
    sets = [explain(texts, seed) for seed in seeds]
    spread = [np.std([one[i].scores for one in sets], axis=0).mean() for i in range(len(texts))]
    return Stability(_mean(mean_pairwise(sets)), float(np.mean(spread)))


def padding_sensitivity(subject: Subject, texts: Sequence[Text], explain: Explainer) -> float:
    """The largest change of a score when texts are explained together instead of one by one.

    The change is relative to the largest score of the text. A change above about 1e-3 means that padding
    affects the explanation.
    """
    together = explain(subject, texts)
    alone = [explain(subject, [text])[0] for text in texts]
    return max(_change(a, b) for a, b in zip(together, alone, strict=True))


def whitespace_sensitivity(subject: Subject, texts: Sequence[str], explain: Explainer) -> float:
    """The largest change of a score when spaces are doubled and put around the text, relative to the largest.

    Texts whose tokens change with their spaces are left out; nan if all do.
    """
    pairs = zip(explain(subject, texts), explain(subject, [respaced(t) for t in texts]), strict=True)
    changes = [_change(a, b) for a, b in pairs if a.tokens == b.tokens]
    return max(changes, default=float("nan"))


def respaced(text: str) -> str:
    """The same words with other white space between and around them."""
    return f" {'  '.join(text.split(' '))} "


def _change(a: Attribution, b: Attribution) -> float:
    scale = float(np.abs(a.scores).max(initial=0)) or 1.0
    return float(np.abs(a.scores - b.scores).max(initial=0)) / scale


def problems(attributions: Sequence[Attribution]) -> list[str]:
    """What is obviously wrong with attributions: scores that are constant, or the same for every text."""
    site = attributions[0].sites[-1] if attributions else 0
    rows = [own_scores(a, a.sites[-1]) for a in attributions]
    rows = [row for row in rows if len(row) > 1]
    found = []
    flat = sum(map(is_flat, rows))
    if flat:
        found.append(
            f"at {site_name(site)}, {flat} of {len(rows)} texts have the same score on every token; give "
            f"explain another layer (sites=)"
        )
    if len(rows) > 2 and flat < len(rows) and _same_by_position(rows):
        found.append("scores depend on the position alone, not on the text")
    return found


def warn_of_problems(name: str, attributions: Sequence[Attribution]) -> list[str]:
    """Warn about a set of attributions that cannot be an explanation. Returns the messages."""
    found = [f"{name}: {problem}" for problem in problems(attributions)]
    for message in found:
        warnings.warn(message, ExplanationWarning, stacklevel=3)
    return found


def _same_by_position(rows: Sequence[np.ndarray]) -> bool:
    longest = max(rows, key=len)
    return all(np.allclose(row, longest[: len(row)], rtol=1e-5, atol=1e-9) for row in rows)


def _mean(values: np.ndarray) -> float:
    """The mean of the values that are not nan; nan if there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else float("nan")
