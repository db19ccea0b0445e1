"""`verify_generation`: remove what a step of an answer is said not to need, and run the model again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import MethodError, ModelError
from ..methods.generation import Dialogue, Step, reads_causally, step_batch
from ..methods.registry import Request
from ..model.known import Known
from ..model.prompt import Prompt
from ..model.subject import Subject, as_subject
from ..records.generation import Generation
from ..tasks.lm import CausalLM, Continuation
from .masking import Views
from .ranking import Ranking
from .verify import Verification, removal


def verify_generation(
    subject: Any, generation: Generation, keep: float = 0.5, replace: Any = "mask", site: int | None = None
) -> list[Verification]:
    """What becomes of each step of an answer when only the most important units before it are left.

        for step, proof in zip(made.steps, verify_generation(subject, made)):
            proof.prediction_kept, proof.divergence

    Whole units are removed: tokens, words, sentences, ... as the record has them. `removed` of a
    verification holds their numbers. What a chat template adds stays.

    Args:
        keep: the share of units that is kept.
        replace: as in `verify`.
        site: the site whose scores are used, by default the first: the words.
    """
    subject = as_subject(subject)
    if not 0 <= keep <= 1:
        raise MethodError(f"keep is {keep}; it is a share of the units, between 0 and 1")
    if not isinstance(subject.task, CausalLM):
        raise ModelError(
            f"an answer is verified with its causal language model, not {type(subject.task).__name__}"
        )
    where = generation.sites[0] if site is None else site
    if where not in generation.sites:
        raise MethodError(f"no scores at site {where}; this record has sites {generation.sites}")
    views, unit_of = _views(subject, generation, removal(replace, where))
    ranking = _ranking(views, unit_of, generation, where)
    kept = ranking.top(keep)  # (steps, units)
    whole, found = views.whole(), views.read(np.arange(len(views)), kept[:, unit_of])
    removed = ranking.removable & ~kept
    return [
        Verification(
            site=where,
            tokens=int(ranking.counts[i]),
            needed=int(kept[i].sum()),
            divergence=float(found.divergence[i]),
            prediction_kept=bool(found.agrees[i]),
            probability_before=float(whole.confidence[i]),
            probability_after=float(found.confidence[i]),
            removed=tuple(np.nonzero(removed[i])[0].tolist()),
        )
        for i in range(len(views))
    ]


def _views(subject: Subject, generation: Generation, how: Any) -> tuple[Views, np.ndarray]:
    """What each step has read, ready to be hidden in part, and the unit of each of the tokens."""
    g, units = generation, np.array(generation.units)
    whole = Prompt(
        g.text, g.ids, tuple(g.offsets[u] for u in g.units), tuple(g.special[u] for u in g.units), g.turns
    )
    names = tuple(subject.tokenizer.convert_ids_to_tokens(list(g.ids)))
    dialogue = Dialogue(whole, min(g.places), names, g.answer)
    planned = zip(g.places, g.targets, g.steps, strict=True)
    steps = [Step(place, Continuation([], list(ids)), name) for place, ids, name in planned]
    batch, wanted = step_batch(subject, dialogue, steps), [step.target for step in steps]
    shared = len(steps) > 1 and reads_causally(subject, dialogue)
    output = Request(subject, batch, subject.sites[:1], wanted, shared=shared).reference
    views = Views(subject, batch.texts, targets=wanted, how=how, known=Known(batch, output))
    return views, np.resize(units, batch.shape[1])  # a span is read further than any step has seen


def _ranking(views: Views, unit_of: np.ndarray, generation: Generation, site: int) -> Ranking:
    """The units of each step from most to least important."""
    scores = generation.scores[:, generation.sites.index(site)]
    removable = np.zeros(scores.shape, dtype=bool)
    for i, row in enumerate(views.removable):
        removable[i, np.unique(unit_of[row])] = True
    return Ranking.of(scores, removable)
