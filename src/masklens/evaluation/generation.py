"""`verify_generation`: keep the units that an explanation says a step needs, and run the model again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import MethodError, ModelError
from ..methods.generation import reads_causally, step_batch
from ..methods.registry import Request
from ..methods.steps import Dialogue, Step
from ..model.known import Known
from ..model.prompt import Prompt
from ..model.subject import Subject, as_subject
from ..records.generation import Generation
from ..records.verification import Verification
from ..tasks.lm import CausalLM, Continuation
from .masking import Views
from .ranking import Ranking
from .sufficiency import MARGIN
from .verify import Question, removal, try_removal, verifications


def verify_generation(
    subject: Any,
    generation: Generation,
    keep: float | None = None,
    replace: Any = "mask",
    site: int | None = None,
    margin: float = MARGIN,
    control: bool = True,
) -> list[Verification]:
    """For each step of an answer: how few of the units before it suffice, and is this better than random?

        for step, proof in zip(made.steps, verify_generation(subject, made)):
            proof.verdict, proof.needed, proof.random_needed, proof.probability_after

    This is `verify` for answers, except that whole units are removed: tokens, words, sentences, ... as in the
    record. `needed`, `tokens` and `removed` count units. Units suffice if with them alone the model's next
    token is the same, and its distribution moves by at most the margin. What a chat template adds is never
    removed.

    Args:
        keep, replace, margin, control: as in `verify`; `keep` is a share of the units.
        site: the site whose scores are used, by default the first site of the record.
    """
    subject, question = as_subject(subject), Question(keep, margin, control=control)
    if not isinstance(subject.task, CausalLM):
        raise ModelError(
            f"an answer is verified with its causal language model, not {type(subject.task).__name__}"
        )
    where = generation.sites[0] if site is None else site
    if where not in generation.sites:
        raise MethodError(f"no scores at site {where}; this record has sites {generation.sites}")
    views = _views(subject, generation, removal(replace, where))
    ranking = Ranking.of(generation.scores[:, generation.sites.index(where)], views.removable)
    tried = try_removal(views, ranking, generation.merge == "max", question)
    return verifications(views, tried, where, views.batch.tokens)


class UnitViews(Views):
    """Views in which whole units are visible or hidden: the counterpart of `Views` for units."""

    def __init__(self, units: Sequence[int], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._count, self._of_tokens = max(units) + 1, (self.removable, self.valid)
        self._unit_of = np.resize(units, self.batch.shape[1])  # a span is read further than any step has seen
        self.removable, self.valid = self._by_unit(self.removable), self._by_unit(self.valid)

    def _by_unit(self, tokens: np.ndarray) -> np.ndarray:
        """(steps, units): whether a unit contains one of the given tokens (steps, tokens)."""
        found = np.zeros((len(tokens), self._count), dtype=bool)
        rows, places = np.nonzero(tokens)
        found[rows, self._unit_of[places]] = True
        return found

    def _tokens(self, rows: np.ndarray, keep: np.ndarray) -> np.ndarray:
        removable, valid = self._of_tokens
        return (keep[:, self._unit_of] | ~removable[rows]) & valid[rows]


def _views(subject: Subject, generation: Generation, how: Any) -> UnitViews:
    """The text before each step, ready to be run with some units hidden."""
    g = generation
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
    return UnitViews(g.units, subject, batch.texts, targets=wanted, how=how, known=Known(batch, output))
