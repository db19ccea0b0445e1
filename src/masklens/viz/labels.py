"""The words that every picture shares: names of sites, one line about a record, text that is safe to show."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from ..attribution import Attribution

PARTS = ("first text", "second text")
"""where a record does not say what its texts are"""


def site_name(site: int) -> str:
    """0 is the words before position is added, 1 the whole embeddings, k+1 the output of block k."""
    return ("words", "embeddings")[site] if site < 2 else f"block {site - 1}"


def part_names(attribution: Attribution) -> tuple[str, ...]:
    """What the two texts of a pair are called; nothing for a single text."""
    if isinstance(attribution.text, str):
        return ()
    return tuple(printable(name) for name in attribution.parts or PARTS)


def window_note(attribution: Attribution) -> str:
    """Where the window and the answer are in the whole context, if the record is of a window."""
    said = attribution.settings
    if isinstance(attribution.text, str) or "window" not in said:
        return ""
    end = said["window_start"] + len(attribution.text[1])
    answer = f"the answer at {said['answer_start']}-{said['answer_end']}"
    return printable(f"window {said['window']}: characters {said['window_start']}-{end}, {answer}")


def caption(attribution: Attribution) -> str:
    """Method, target and, where it is another, the prediction."""
    about = f"{attribution.method} · target {attribution.target}"
    other = attribution.prediction != attribution.target
    return printable(f"{about} · predicted {attribution.prediction}" if other else about)


def printable(text: str) -> str:
    """The text with every control, format and other unprintable character shown as a dot.

    A text may hold escape sequences, which must not reach the terminal, and marks that turn the direction
    of what follows them.
    """
    return "".join(character if character.isprintable() else "·" for character in text)


def visible(text: str, lines: bool = False) -> str:
    """The text with every unprintable character shown by a sign or its number; with `lines`, lines stay.

    The joiners of emoji and of Persian stay: they turn nothing around.
    """
    kept = "\u200c\u200d" + "\n\t" * lines
    if lines:
        text = text.replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in kept or category(c) == "Zs" else _picture(c) for c in text)


def _picture(character: str) -> str:
    return {"\n": "\u21b5", "\t": "\u21e5"}.get(character, f"\u27e8U+{ord(character):04X}\u27e9")


def shortened(text: str, length: int) -> str:
    """At most `length` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"
