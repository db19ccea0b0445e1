"""Where the strings of tokens stand in a text, for tokenizers that do not say it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def align(text: str, pieces: Sequence[str | None]) -> list[tuple[int, int]]:
    """Character spans of token strings in a text, read from left to right.

    Case, accents and the marks that tokenizers add to words are ignored. Unknown tokens (None), and pieces
    that do not occur in the text, share the characters between their neighbours.
    """
    plain = [(c, i) for i, char in enumerate(text) for c in _plain(char)]
    letters = "".join(c for c, _ in plain)
    where = [i for _, i in plain]
    spans: list[tuple[int, int]] = []
    waiting: list[int] = []
    at = 0

    def settle(until: int) -> None:
        gap = (where[at], where[until - 1] + 1) if at < until else (0, 0)
        for one in waiting:
            spans[one] = gap
        waiting.clear()

    for k, piece in enumerate(pieces):
        key = "".join(_plain(c) for c in _bare(piece or ""))
        found = letters.find(key, at) if key else -1
        if found < 0 or (found > at and not waiting):
            waiting.append(k)
            spans.append((0, 0))
            continue
        settle(found)
        at = found + len(key)
        spans.append((where[found], where[at - 1] + 1))
    settle(len(letters))
    return spans


def find_pieces(text: str, pieces: Sequence[str]) -> list[tuple[int, int] | None]:
    """Character spans of token strings that come one after another in a text; None for one that does not.

    Case, accents and marks are ignored as in `align`, but nothing is guessed: text between them may be left.
    """
    where = [i for i, char in enumerate(text) for _ in _plain(char)]
    letters = "".join(map(_plain, text))
    spans: list[tuple[int, int] | None] = []
    at = 0
    for piece in pieces:
        key = "".join(map(_plain, _bare(piece)))
        start = letters.find(key, at) if key else -1
        at = at if start < 0 else start + len(key)
        spans.append(None if start < 0 else (where[start], where[at - 1] + 1))
    return spans


def _plain(char: str) -> str:
    """A character without case, accents or space."""
    parts = unicodedata.normalize("NFKD", char.casefold())
    return "".join(c for c in parts if not unicodedata.combining(c) and not c.isspace())


def _bare(piece: str) -> str:
    """A token string without the marks of sub-words."""
    piece = piece.removeprefix("##").removesuffix("</w>").removesuffix("@@")
    return piece.lstrip("\u2581\u0120")
