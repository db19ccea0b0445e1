"""`verify_generation`: keep the units that an explanation says a step needs, and run the model again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodError, ModelError
from ..methods.generation import reads_causally, step_batch
from ..methods.registry import Request
from ..methods.steps import Dialogue, Step
from ..model.batch import Batch
from ..model.known import Known
from ..model.prompt import Prompt
from ..model.subject import Subject, as_subject
from ..records.generation import Generation
from ..records.layers import row_of
from ..records.verification import Verification
from ..tasks.lm import CausalLM, Continuation
from .masking import Views
from .ranking import Ranking
from .sufficiency import MARGIN
from .verify import Question, removal, try_removal, verifications

Pair = tuple[int, int] | None
FAR = -1e4
"""the logit of a token that does not count; it is finite, so that the divergence is a number"""


def verify_generation(
    subject: Any,
    generation: Generation,
    keep: float | None = None,
    replace: Any = "mask",
    site: int | str | None = None,
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

    For "A rather than B" only these two tokens count. Units suffice if with them alone the model prefers the
    same one of the two, and the distribution over the two moves by at most the margin. The probabilities are
    those of A among the two.

    Args:
        keep, replace, margin, control: as in `verify`; `keep` is a share of the units.
        site: the site, or the name of the layer, whose scores are used, by default the first of the record.
    """
    _check_answer(generation)
    subject, question = as_subject(subject), Question(keep, margin, control=control)
    if not isinstance(subject.task, CausalLM):
        raise ModelError(
            f"an answer is verified with its causal language model, not {type(subject.task).__name__}"
        )
    row = 0 if site is None else row_of(site, generation.sites)
    where = generation.sites[row]
    views = _views(subject, generation, removal(replace, where))
    ranking = Ranking.of(generation.scores[:, row], views.removable)
    tried = try_removal(views, ranking, generation.merge == "max", question)
    return verifications(views, tried, where, views.batch.tokens)


def _check_answer(given: Any) -> None:
    """Raise a MethodError for anything but one explained answer."""
    if not isinstance(given, Generation):
        raise MethodError(
            f"verify_generation takes one explained answer, not a {type(given).__name__}; call it for each "
            f"answer of a list, and verify(subject, attributions) for explained texts"
        )


class UnitViews(Views):
    """Views in which whole units are visible or hidden: the counterpart of `Views` for units.

    Args:
        pairs: for each step the tokens A and B of "A rather than B", or None. Such a step is read from the
            distribution over the two.
    """

    def __init__(
        self, units: Sequence[int], pairs: Sequence[Pair], subject: Subject, known: Known, **more: Any
    ) -> None:
        self._pairs = pairs
        known = Known(known.batch, self._narrowed(torch.arange(len(pairs)), known.output))
        super().__init__(subject, known.batch.texts, known=known, **more)
        self._count, self._of_tokens = max(units) + 1, (self.removable, self.valid)
        self._unit_of = np.resize(units, self.batch.shape[1])  # a span is read further than any step has seen
        self.removable, self.valid = self._by_unit(self.removable), self._by_unit(self.valid)

    def _by_unit(self, tokens: np.ndarray) -> np.ndarray:
        """(steps, units): whether a unit contains one of the given tokens (steps, tokens)."""
        found = np.zeros((len(tokens), self._count), dtype=bool)
        rows, places = np.nonzero(tokens)
        found[rows, self._unit_of[places]] = True
        return found

    def _answers(self, rows: Tensor, batch: Batch, output: Tensor) -> Tensor:
        return super()._answers(rows, batch, self._narrowed(rows, output))

    def _narrowed(self, rows: Tensor, output: Tensor) -> Tensor:
        """The output (views, tokens, vocabulary); for a pair the logits of all other tokens are far below."""
        if not any(self._pairs):
            return output
        output = output.clone()
        for i, pair in enumerate(self._pairs[row] for row in rows.tolist()):
            if pair is not None:
                logits = output[i, :, list(pair)]
                output[i] = FAR
                output[i, :, list(pair)] = logits - logits.amax(-1, keepdim=True)
        return output

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
    pairs = [None if b is None else (ids[0], b) for ids, b in zip(g.targets, g.rather_than, strict=True)]
    return UnitViews(g.units, pairs, subject, Known(batch, output), targets=wanted, how=how)
