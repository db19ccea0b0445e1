"""Cut a text into units: tokens, words, sentences, the turns of a chat, or spans that the user gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        units: "tokens", "words", "sentences" (a turn ends a sentence), "turns", or spans of the text: parts
            of it as strings, or (start, end) characters. The text between two spans is a unit too.
    """
    if isinstance(units, str) and units == "tokens":
        return [[i] for i in range(len(layout.tokens))]
    if isinstance(units, str) and units == "words":
        segments = [0] * len(layout.tokens)
        return word_groups([layout.text], layout.tokens, layout.offsets, segments, layout.special)
    return _grouped(layout, _cuts(layout, units))


def check_units(units: Any, turns: bool) -> None:
    """Raise a TextError for unknown units, before any work is done."""
    if isinstance(units, str) and units not in KINDS:
        raise TextError(f"no units {units!r}; give {', '.join(KINDS)}, or a list of spans of the text")
    if units == "turns" and not turns:
        raise TextError("a string has no turns; give the messages, a list of {'role': ..., 'content': ...}")


def _cuts(layout: Layout, units: Any) -> list[int]:
    """The characters at which units begin."""
    ends = [place for turn in layout.turns for place in (turn.start, turn.end)]
    if units == "turns":
        return sorted({0, *ends})
    if units == "sentences":
        return sorted({0, *ends, *(found.end() for found in END.finditer(layout.text))})
    return sorted({0, *(place for span in units for place in _place(layout.text, span))})


def _place(text: str, span: Any) -> Span:
    """The characters of a span that the user gave."""
    if isinstance(span, str):
        start = text.find(span) if span else -1
        if start < 0 or text.find(span, start + 1) >= 0:
            often = "more than once" if start >= 0 else "nowhere"
            raise TextError(f"the span {span!r:.60} is {often} in the text; give it as (start, end) instead")
        return start, start + len(span)
    start, end = span
    if not 0 <= start < end <= len(text):
        raise TextError(f"the span {span!r} is not in the text, which has {len(text)} characters")
    return start, end


def _grouped(layout: Layout, cuts: Sequence[int]) -> list[list[int]]:
    """Group tokens by the last cut before their first character that is not white space."""
    groups: list[list[int]] = []
    last: int | None = -1
    for i, (start, end) in enumerate(layout.offsets):
        written = layout.text[start:end]
        first = start + len(written) - len(written.lstrip())
        unit = None if layout.special[i] else sum(cut <= min(first, max(start, end - 1)) for cut in cuts)
        if unit != last:
            groups.append([])
        groups[-1].append(i)
        last = unit
    return groups
