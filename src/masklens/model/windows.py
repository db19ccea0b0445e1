"""Long contexts: cut them into windows that overlap, and find the window with the best answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..attribution import Text
from ..errors import MethodError, TargetError, TextError
from ..tasks.spans import QuestionAnswering
from ..words import Span
from .batch import TokenizerEncoder
from .subject import Subject


class Window(NamedTuple):
    """A question with a part of its context that fits the model."""

    pair: tuple[str, str]
    start: int
    """the character of the whole context at which the part begins"""

    @property
    def end(self) -> int:
        return self.start + len(self.pair[1])


class WindowAnswer(NamedTuple):
    """The best answer in one window."""

    score: float
    """the logit of the start plus the logit of the end; unlike probabilities, it can be compared between
    windows"""
    start: int
    """`start` and `end` are characters of the whole context"""
    end: int


def windows(subject: Subject, pair: tuple[str, str], overlap: int = 128) -> list[Window]:
    """Cut the context of a pair (question, context) into windows that fit the model with the question.

        for window in windows(subject, (question, context)):
            window.pair, window.start, window.end

    Neighbouring windows share at least `overlap` tokens, so an answer of at most that length is complete in
    one of them. Windows begin and end between words if the text has spaces. A context that fits is one
    window.
    """
    encoder = _encoder(subject)
    if isinstance(pair, str):
        raise TextError(f"windows are cut from a pair (question, context); this is {pair!r:.80}")
    row = encoder.tokenize(pair)
    spans, room = _context_spans(row), encoder.room(pair, row)
    if len(spans) <= room:
        return [Window(pair, 0)]
    if not 0 <= overlap < room:
        raise MethodError(
            f"windows cannot overlap by {overlap} tokens: beside the question the model takes {room} tokens "
            f"of the context; give a number from 0 to {room - 1}"
        )
    cuts = _cuts(encoder, pair, spans, room, overlap)
    places = ((spans[first][0], spans[last - 1][1]) for first, last in cuts)
    return [Window((pair[0], pair[1][start:end]), start) for start, end in places]


def _encoder(subject: Subject) -> TokenizerEncoder:
    if isinstance(subject.task, QuestionAnswering) and isinstance(subject._encode, TokenizerEncoder):
        return subject._encode
    raise MethodError(
        f"windows are for question answering with a tokenizer; this subject's task is "
        f"{type(subject.task).__name__}. Leave windows out, or cut texts with truncate=True"
    )


def _context_spans(row: Mapping[str, Any]) -> list[Span]:
    """The characters of each token of the context. One without characters is at the end of the last one."""
    columns = zip(row["offset_mapping"], row["segments"], row["special_tokens_mask"], strict=True)
    spans: list[Span] = []
    for (start, end), segment, special in columns:
        if segment == 1 and not special:
            before = spans[-1][1] if spans else 0
            spans.append((start, end) if start < end else (before, before))
    return spans


def _cuts(
    encoder: TokenizerEncoder, pair: tuple[str, str], spans: Sequence[Span], room: int, overlap: int
) -> Iterator[Span]:
    """For each window its first token and the token after its last."""
    words = [i for i, span in enumerate(spans) if _begins_word(pair[1], span[0])]
    first = last = 0
    while last < len(spans):
        last = _last(encoder, pair, spans, words, first, first + room)
        yield first, last
        first = _snapped(words, last - overlap, first + 1)


def _begins_word(text: str, at: int) -> bool:
    """Some tokenizers count the space before a word as part of it."""
    return at == 0 or text[at].isspace() or text[at - 1].isspace()


def _snapped(words: Sequence[int], at: int, least: int) -> int:
    """The nearest beginning of a word at a token or before it, but not before `least`."""
    return max((i for i in words if least <= i <= at), default=max(at, least))


def _last(
    encoder: TokenizerEncoder,
    pair: tuple[str, str],
    spans: Sequence[Span],
    words: Sequence[int],
    first: int,
    last: int,
) -> int:
    """The largest end at which a window fits. A part alone may have more tokens than inside the context."""
    while True:
        last = len(spans) if last >= len(spans) else _snapped(words, last, first + 1)
        part = pair[1][spans[first][0] : spans[last - 1][1]]
        excess = len(encoder.tokenize((pair[0], part))["input_ids"]) - (encoder.max_length or 0)
        if excess <= 0 or last == first + 1:
            return last
        last = max(first + 1, last - excess)


def best_windows(
    subject: Subject,
    texts: Sequence[Text],
    overlap: int,
    targets: Sequence[Any] | None = None,
    batch_size: int = 32,
) -> tuple[list[Text], list[dict[str, Any]]]:
    """For each pair the window with the best answer, and notes about it; no notes if the pair fits.

    If the target is the text of an answer, the window is the one where that answer has the best score.
    """
    chosen, notes = list(texts), [dict[str, Any]() for _ in texts]
    for i, text in enumerate(texts):
        found = [] if isinstance(text, str) else windows(subject, text, overlap)
        if len(found) > 1:
            best, answer = _best(subject, found, targets[i] if targets else None, batch_size)
            chosen[i] = found[best].pair
            notes[i] = {"window": f"{best + 1} of {len(found)}", "window_start": found[best].start}
            notes[i] |= {"answer_start": answer.start, "answer_end": answer.end}
    return chosen, notes


def _best(
    subject: Subject, found: Sequence[Window], target: Any, batch_size: int
) -> tuple[int, WindowAnswer]:
    if target is not None and not isinstance(target, str):
        raise TargetError(f"the target is {target!r}; with windows, give the answer's text")
    usable = [i for i, window in enumerate(found) if target is None or target in window.pair[1]]
    if not usable:
        raise TargetError(f"the answer {target!r} is in none of the {len(found)} windows of the context")
    answers: list[WindowAnswer] = []
    for at in range(0, len(usable), batch_size):
        answers += _answers(subject, [found[i] for i in usable[at : at + batch_size]], target)
    best = max(range(len(usable)), key=lambda k: answers[k].score)
    return usable[best], answers[best]


@torch.no_grad()
def _answers(subject: Subject, found: Sequence[Window], target: str | None) -> list[WindowAnswer]:
    batch, task = subject.encode([window.pair for window in found]), subject.task
    output = subject.run(batch).output
    span = task.resolve(target, output, batch)  # (windows, 2) tokens
    rows = zip(found, batch.offsets, span.tolist(), task.score(output, span).tolist(), strict=True)
    return [
        WindowAnswer(score, window.start + offsets[first][0], window.start + offsets[last][1])
        for window, offsets, (first, last), score in rows
    ]
