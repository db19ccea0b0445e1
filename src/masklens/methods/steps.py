"""Which steps of an answer are explained: each of its tokens, a part of it, or A rather than B."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

from ..errors import TargetError
from ..model.batch import check_unicode
from ..model.prompt import Prompt
from ..model.subject import Subject
from ..tasks.lm import Continuation, contrast
from ..words import Span


class Dialogue(NamedTuple):
    """A prompt and the answer to it."""

    whole: Prompt
    """prompt and answer together, as one prompt"""
    start: int
    """how many tokens the prompt has"""
    names: tuple[str, ...]
    """the names of all tokens"""
    answer: str


class Step(NamedTuple):
    """One step to explain: what the model says after the first `place` tokens."""

    place: int
    target: Continuation
    name: str
    piece: str = ""
    """the text of the step"""


def check_target(target: Any) -> None:
    """Raise an error for what can be no target, whatever the answer is."""
    span, *other = target if isinstance(target, tuple) and len(target) == 2 else (target,)
    if target is None:
        return
    if not isinstance(span, str | slice) or not all(isinstance(one, str | Integral) for one in other):
        raise TargetError(
            f"{target!r} is not a target; give a string in the answer, a slice, or a pair (A, B)"
        )
    if isinstance(span, slice) and not all(isinstance(at, Integral | None) for at in (span.start, span.stop)):
        raise TargetError(f"{span} is no slice of tokens; give whole numbers")
    if isinstance(span, slice) and span.step not in (None, 1):
        raise TargetError(
            f"{span} has the step {span.step}; one part of the answer is explained: leave it out"
        )
    for one in (span, *other):
        if isinstance(one, str):
            check_unicode(one)


def plan_steps(subject: Subject, dialogue: Dialogue, target: Any) -> list[Step]:
    """The steps to explain: each token of the answer, a span of it, or one span rather than another."""
    if target is None:
        ids, start = dialogue.whole.ids, dialogue.start
        pieces = [
            dialogue.whole.text[slice(*_characters(dialogue, i, i + 1))] for i in range(start, len(ids))
        ]
        numbered = enumerate(zip(dialogue.names[start:], pieces, strict=True), start)
        return [Step(i, Continuation([], [ids[i]]), name, piece or name) for i, (name, piece) in numbered]
    span = target[0] if isinstance(target, tuple) and len(target) == 2 else target
    first, last, lead = _span(dialogue, span)
    own = list(dialogue.whole.ids[first:last])
    if not isinstance(target, tuple):
        written = dialogue.whole.text[slice(*_characters(dialogue, first, last))] or dialogue.names[first]
        return [Step(first, Continuation([], own), written, written)]
    task: Any = subject.task
    other = task._ids(lead + target[1] if isinstance(target[1], str) else target[1])
    chosen = contrast(own, other, target)
    name = f"{task.tokenizer.decode(chosen.ids)} rather than {task.tokenizer.decode([chosen.other])}"
    return [Step(first + len(chosen.given), chosen._replace(given=[]), name, name)]


def _characters(dialogue: Dialogue, first: int, last: int) -> Span:
    offsets = dialogue.whole.offsets
    return offsets[first][0], offsets[last - 1][1]


def _span(dialogue: Dialogue, span: Any) -> tuple[int, int, str]:
    """The first token of a part of the answer, the token after its last, and the characters of the first
    token that stand before the part."""
    count = len(dialogue.whole.ids) - dialogue.start
    if isinstance(span, slice):
        chosen = range(count)[span]
        if not chosen:
            raise TargetError(f"{span} holds no tokens of the answer, which has {count}; give another slice")
        return dialogue.start + chosen[0], dialogue.start + chosen[-1] + 1, ""
    at = dialogue.answer.find(span) if span else -1
    if at < 0:
        raise TargetError(
            f"{span!r} is not in the answer {dialogue.answer!r:.80}; to ask about another answer give it as "
            f"continuation="
        )
    if dialogue.answer.find(span, at + 1) >= 0:
        raise TargetError(
            f"{span!r} is more than once in the answer {dialogue.answer!r:.80}; give a longer part of it, or "
            f"a slice of the answer's tokens"
        )
    at += len(dialogue.whole.text) - len(dialogue.answer)
    touched = [
        i
        for i, (start, end) in enumerate(dialogue.whole.offsets)
        if i >= dialogue.start and start < at + len(span) and at < end
    ]
    first = touched[0]
    return first, touched[-1] + 1, dialogue.whole.text[dialogue.whole.offsets[first][0] : at]
