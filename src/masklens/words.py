"""The words of a text and the tokens of each word, found by character offsets for any kind of tokenizer.

A word is a run of letters, digits and marks. Every other character, and every ideograph or kana, is a word
of its own. Marks, joiners and modifiers belong to the character before them, so an emoji is never split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import regex

MARKS = r"[\p{M}\p{Cf}\U0001F3FB-\U0001F3FF]*"
"""combining marks, joiners and other format characters, skin tones"""
LETTER = r"[[\p{L}\p{N}]--[\p{ea=W}--\p{Hangul}]]"
"""letters and digits that form words with their neighbours; without those of scripts that use no spaces"""
FLAG = r"[\U0001F1E6-\U0001F1FF]{2}"
PIECE = rf"(?:(?:{LETTER}{MARKS})+|(?:{FLAG}|[^\s\x1C-\x1F]){MARKS})"
WORD = regex.compile(rf"(?V1){PIECE}(?:(?<=\u200D){PIECE})*")  # U+200D joins what stands around it
END = regex.compile(rf"(?V1){MARKS}")
Span = tuple[int, int]


def units(text: str) -> list[int]:
    """The number of the word that each character belongs to, -1 for space."""
    out = [-1] * len(text)
    for number, word in enumerate(WORD.finditer(text)):
        out[word.start() : word.end()] = [number] * len(word[0])
    return out


def best_shared(spans: Sequence[Span], others: Sequence[Span]) -> np.ndarray:
    """For each span, the number of the span in `others` that it shares most characters with; -1 if none."""
    if not len(spans) or not len(others):
        return np.full(len(spans), -1)
    (start, end), (first, last) = np.array(spans).T[:, :, None], np.array(others).T
    shared = np.minimum(end, last) - np.maximum(start, first)  # (spans, others)
    return np.where(shared.max(1) > 0, shared.argmax(1), -1)


def word_groups(
    sources: Sequence[str],
    tokens: Sequence[str],
    offsets: Sequence[Span],
    segments: Sequence[int],
    special: Sequence[bool],
) -> list[list[int]]:
    """The token numbers of each word, in order.

    Tokens that share a word of the text are one group. A token of white space goes with the word after it,
    or with the word before it at the end of a text. Special tokens, and tokens without a place in the text,
    are groups of their own.
    """
    numbers = [units(source) for source in sources]
    groups: list[list[int]] = []
    last = NOWHERE  # segment and word at which the newest group ends
    spaces: list[int] = []
    for i, (start, end) in enumerate(offsets):
        segment = segments[i]
        found = [] if special[i] else [n for n in numbers[segment][start:end] if n >= 0]
        if spaces and segments[spaces[0]] != segment:
            last = _settle(groups, spaces, last)
        if found and last[0] == segment and found[0] <= last[1]:
            groups[-1] += [*spaces, i]
            last = (segment, max(last[1], found[-1]))
        elif found:
            groups.append([*spaces, i])
            last = (segment, found[-1])
        elif not special[i] and (start < end or _is_space(tokens[i])):
            spaces.append(i)
            continue
        else:
            _settle(groups, spaces, last)
            groups.append([i])
            last = NOWHERE
        spaces.clear()
    _settle(groups, spaces, last)
    return groups


NOWHERE = (-1, -1)


def _is_space(token: str) -> bool:
    """Whether a token's name has only white space, or the characters that tokenizers write for it."""
    return bool(token) and all(char.isspace() or char in "\u2581\u0120\u010a\u0109\u010d" for char in token)


def _settle(groups: list[list[int]], spaces: list[int], last: Span) -> Span:
    """Add white space that no word follows to the word before it, or make it a group of its own."""
    if spaces and last != NOWHERE:
        groups[-1] += spaces
    elif spaces:
        groups.append(list(spaces))
    spaces.clear()
    return NOWHERE


def word_span(source: str, spans: Sequence[Span]) -> Span:
    """The span of characters from the first to the last token of a word, without white space around it. All
    combining marks are included."""
    used = [(a, b) for a, b in spans if source[a:b].strip()]
    if not used:
        return spans[0]
    start, end = min(a for a, _ in used), max(b for _, b in used)
    word = source[start:end]
    start, end = end - len(word.lstrip()), start + len(word.rstrip())
    return start, END.match(source, end).end()
