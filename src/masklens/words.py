"""The words of a text and the tokens of each word, found by character offsets for any kind of tokenizer.

A word is a run of letters, digits and marks. Every other character, and every ideograph or kana, is a word
of its own. Marks, joiners and modifiers belong to the character before them, so an emoji is never split.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

JOINER = "\u200d"
Span = tuple[int, int]


def units(text: str) -> list[int]:
    """The number of the word that each character belongs to, -1 for space."""
    out: list[int] = []
    count = -1
    for i, char in enumerate(text):
        if char.isspace():
            out.append(-1)
            continue
        if i == 0 or text[i - 1].isspace() or not _same_word(text, i):
            count += 1
        out.append(count)
    return out


def _same_word(text: str, i: int) -> bool:
    """Whether character i goes with the one before it."""
    before, char = text[i - 1], text[i]
    if _extends(char) or before == JOINER:
        return True
    if _is_flag_letter(before) and _is_flag_letter(char):
        run = next((k for k in range(i, -1, -1) if not _is_flag_letter(text[k])), -1)
        return (i - run) % 2 == 0  # a flag is a pair of letters
    at = i - 1
    while at > 0 and _extends(text[at]):
        at -= 1
    return _wordlike(text[at]) and _wordlike(char)


def _extends(char: str) -> bool:
    """Combining marks, variation selectors, joiners and skin tones."""
    return unicodedata.category(char) in ("Mn", "Me", "Mc", "Cf") or "\U0001f3fb" <= char <= "\U0001f3ff"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _wordlike(char: str) -> bool:
    """Letters and digits that form words with their neighbours: not those of scripts without spaces."""
    if unicodedata.category(char)[0] not in "LN":
        return False
    wide = unicodedata.east_asian_width(char) in "WF"
    return not wide or unicodedata.name(char, "").startswith(("HANGUL", "FULLWIDTH"))


def word_groups(
    sources: Sequence[str],
    tokens: Sequence[str],
    offsets: Sequence[Span],
    segments: Sequence[int],
    special: Sequence[bool],
) -> list[list[int]]:
    """Token numbers of each word, in order.

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
    """The characters from the first to the last token of a word, without white space, with all its marks."""
    used = [(a, b) for a, b in spans if source[a:b].strip()]
    if not used:
        return spans[0]
    start, end = min(a for a, _ in used), max(b for _, b in used)
    while source[start].isspace():
        start += 1
    while source[end - 1].isspace():
        end -= 1
    while end < len(source) and _extends(source[end]):
        end += 1
    return start, end
