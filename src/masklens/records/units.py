"""Cut a text into units: tokens, words, sentences, the turns of a chat, or spans that the user gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

from pydantic import StrictInt

from ..errors import TextError
from ..words import Span, word_groups

KINDS = ("tokens", "words", "sentences", "turns")
END = re.compile(r"(?<=[.!?])[\"')\]»”’]*\s+|(?<=[。！？])|\n+")
"""where a sentence ends: a mark and white space, an ideographic mark, or the end of a line"""


class Turn(NamedTuple):
    """One message of a chat: who wrote it, and its characters in the prompt."""

    role: str
    start: StrictInt
    end: StrictInt


class Layout(NamedTuple):
    """The tokens of a text and their positions in it."""

    text: str
    tokens: Sequence[str]
    offsets: Sequence[Span]
    special: Sequence[bool]
    turns: Sequence[Turn]


def unit_groups(layout: Layout, units: Any) -> list[list[int]]:
    """The token numbers of each unit, in the order of the text. Special tokens are in units of their own.

    Args:
        units: "tokens", "words", "sentences" (a turn ends a sentence), "turns", or spans of the text as
            (start, end) characters. The text between two spans is a unit too.
    """
    if isinstance(units, str) and units == "tokens":
        return [[i] for i in range(len(layout.tokens))]
    if isinstance(units, str) and units == "words":
        segments = [0] * len(layout.tokens)
        return word_groups([layout.text], layout.tokens, layout.offsets, segments, layout.special)
    return _grouped(layout, _cuts(layout, units))


def check_units(units: Any, turns: bool) -> None:
    """Raise a TextError for unknown units, before any work is done."""
    several = isinstance(units, list | tuple) and len(units) > 0 and all(map(_is_span, units))
    if not (units in KINDS if isinstance(units, str) else several):
        raise TextError(
            f"no units {units!r:.60}; give {', '.join(KINDS)}, or a list of spans of the prompt: strings, or "
            f"(start, end) characters"
        )
    if units == "turns" and not turns:
        raise TextError("a string has no turns; give the messages, a list of {'role': ..., 'content': ...}")


def _is_span(span: Any) -> bool:
    pair = isinstance(span, list | tuple) and len(span) == 2
    return isinstance(span, str) or (pair and all(isinstance(place, Integral) for place in span))


def find_spans(prompt: str, units: Any) -> Any:
    """The units with each span as its (start, end) characters in the prompt; a name stays as it is."""
    if isinstance(units, str):
        return units
    found = sorted(_place(prompt, span) for span in units)
    for (start, end), (other, last) in pairwise(found):
        if other < end:
            raise TextError(
                f"the spans {prompt[start:end]!r:.60} and {prompt[other:last]!r:.60} overlap; a token "
                f"belongs to one unit"
            )
    return found


def _cuts(layout: Layout, units: Any) -> list[int]:
    """The characters at which units begin."""
    ends = [place for turn in layout.turns for place in (turn.start, turn.end)]
    if units == "turns":
        return sorted({0, *ends})
    if units == "sentences":
        return sorted({0, *ends, *(found.end() for found in END.finditer(layout.text))})
    return sorted({0, *(place for span in units for place in span)})


def _place(prompt: str, span: Any) -> Span:
    """The characters of a span that the user gave."""
    if isinstance(span, str):
        start = prompt.find(span) if span else -1
        if start < 0 or prompt.find(span, start + 1) >= 0:
            often = "more than once" if start >= 0 else "nowhere"
            raise TextError(
                f"the span {span!r:.60} is {often} in the prompt; give it as (start, end) instead"
            )
        return start, start + len(span)
    start, end = span
    if not 0 <= start < end <= len(prompt):
        raise TextError(f"the span {span!r} is not in the prompt, which has {len(prompt)} characters")
    return start, end


def first_character(text: str, token: Span) -> int:
    """The first character of a token that is not white space; the last one if all are."""
    start, end = token
    written = text[start:end]
    return min(start + len(written) - len(written.lstrip()), max(start, end - 1))


def check_removable(layout: Layout, units: Any) -> None:
    """Raise a TextError for a span that holds no token which can be removed."""
    for start, end in () if isinstance(units, str) else units:
        inside = [start <= first_character(layout.text, token) < end for token in layout.offsets]
        if any(yes and not special for yes, special in zip(inside, layout.special, strict=True)):
            continue
        said = f"the span {layout.text[start:end]!r:.60}"
        if any(inside):
            raise TextError(
                f"{said} is special tokens or words of the chat template, which are never removed; leave it "
                f"out, or write a system prompt as a message"
            )
        raise TextError(f"{said} has no token of its own; give all of a word, and not only white space")


def _grouped(layout: Layout, cuts: Sequence[int]) -> list[list[int]]:
    """Group tokens by the last cut before their first character that is not white space."""
    groups: list[list[int]] = []
    last: int | None = -1
    for i, (start, end) in enumerate(layout.offsets):
        first = first_character(layout.text, (start, end))
        unit = None if layout.special[i] else sum(cut <= first for cut in cuts)
        if unit != last:
            groups.append([])
        groups[-1].append(i)
        last = unit
    return groups
