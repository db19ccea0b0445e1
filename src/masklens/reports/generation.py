"""A language model's answer for the viewer: a map for each step, and the parts of the text that can be
folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..evaluation.generation import verify_generation
from ..records.generation import Generation
from ..records.units import Layout, unit_groups
from .labels import visible
from .layers import guess_data, lens_data
from .page import Entry, layout_data, map_data


@dataclass(frozen=True)
class Answer:
    """An explained answer as the viewer shows it."""

    generation: Generation
    name: str
    """the heading: the name of the method"""


def proved(
    generation: Generation,
    subject: Any = None,
    keep: float | None = None,
    replaced: Any = "mask",
    name: str | None = None,
) -> Answer:
    """An answer with its verification, which is made if the subject is given, else taken from the record."""
    if subject is not None:
        proofs = verify_generation(subject, generation, keep, replaced)
        generation = replace(generation, verification=tuple(proofs))
    return Answer(generation, name or generation.method)


def same_answers(generations: Sequence[Generation]) -> list[list[Generation]]:
    """Group the explanations of the same answer by several methods."""
    found: dict[Any, list[Generation]] = {}
    for one in generations:
        found.setdefault((one.ids, one.tokens, one.targets, one.rather_than), []).append(one)
    return list(found.values())


def generation_data(answers: Sequence[Answer]) -> dict[str, Any]:
    """A prompt, its answer and the explanations of each step, one method after the other."""
    g = answers[0].generation
    whole = replace(
        g.step(-1),
        text=g.text,
        tokens=g.tokens,
        offsets=g.offsets,
        special=g.special,
        segments=(0,) * len(g.tokens),
        scores=g.scores[-1],
    )
    layout = Layout(g.text, g.tokens, g.offsets, g.special, g.turns)
    return {
        "text": [visible(g.text, lines=True)],
        "prediction": visible(g.answer),
        "layouts": [layout_data(whole)],
        "maps": [step_map(one, i) for one in answers for i in range(len(g))],
        "kind": visible(g.kind),
        "folds": [[visible(name), start, end] for name, start, end in folds(g)],
        "sentences": sentence_starts(layout, [part[1] for part in folds(g)]),
        "steps": [step_data(g, i) for i in range(len(g))],
        "logit_lens_sites": list(g.logit_lens_sites),
    }


def sentence_starts(layout: Layout, also: Sequence[int]) -> list[int]:
    """The units at which sentences begin, and those given."""
    return sorted({group[0] for group in unit_groups(layout, "sentences")} | set(also))


def step_map(answer: Answer, step: int) -> dict[str, Any]:
    """The map of a step, with a column for each unit before the step."""
    g = answer.generation
    made = {"layout": 0, **map_data(Entry(g.step(step), answer.name, g.verification[step : step + 1]))}
    return made | {"prediction": visible(g.likeliest(step))}


def step_data(g: Generation, step: int) -> dict[str, Any]:
    """The probability of a step's token, and the likeliest other tokens."""
    made: dict[str, Any] = {
        "piece": visible(g.pieces[step]),
        "probability": round(g.probabilities[step], 4),
        "others": guess_data(g.runners_up[step]),
    }
    if g.logit_lens_sites:
        made |= lens_data(g.logit_lens[step], g.settled[step])
    return made


def folds(g: Generation) -> list[tuple[str, int, int]]:
    """The parts of the text, as ranges of units with names: the turns of the prompt, and the answer.

    The text that a template adds before a turn belongs to the turn; after the last turn it is a part of its
    own.
    """
    parts, start = [], 0
    first = sum(begin < len(g.prompt) for begin, _ in g.offsets)
    for turn in g.turns or ():
        inside = [i for i, (a, b) in enumerate(g.offsets) if a < turn.end and turn.start < b]
        end = max(inside, default=start - 1) + 1
        if end > start:
            parts.append((turn.role, start, end))
            start = end
    if start < first:
        parts.append(("template" if parts else "prompt", start, first))
    return [*parts, ("answer", first, len(g.tokens))]
