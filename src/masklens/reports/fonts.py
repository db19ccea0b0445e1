"""The fonts of the static pictures: how wide a text is, and boxes for what no installed font can draw."""

from __future__ import annotations

from functools import lru_cache

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import text_to_path

from .labels import printable

POINT = 1 / 72
"""inches"""
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "Microsoft YaHei",
    "Malgun Gothic", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei", "Droid Sans Fallback", "Arial Unicode MS", "Noto Sans Arabic", "Noto Sans Hebrew",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Thai", "Nirmala UI",
    "Segoe UI", "Tahoma", "Segoe UI Symbol", "Segoe UI Emoji", "Apple Symbols", "Noto Sans Symbols2",
    "FreeSans", "FreeSerif", "Unifont", "Symbola", "Noto Emoji",
)  # fmt: skip
"""fonts with more scripts than matplotlib's own, used if they are installed"""


def text_width(text: str, size: float) -> float:
    """The width of a text in inches."""
    font = FontProperties(family=families(), size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * POINT


def drawable(text: str) -> str:
    """The text with a box for every character that no installed font can draw."""
    known = _glyphs(tuple(families()))
    return "".join(character if ord(character) in known else "□" for character in printable(text))


def families() -> list[str]:
    return [*matplotlib.rcParams["font.family"], *_installed()]


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    installed = set(fontManager.get_font_names())
    return tuple(name for name in FALLBACKS if name in installed)


@lru_cache(maxsize=8)
def _glyphs(families: tuple[str, ...]) -> frozenset[int]:
    """The characters that the fonts of these families have."""
    fonts = (get_font(findfont(FontProperties(family=[name]))) for name in families)
    return frozenset().union(*(font.get_charmap() for font in fonts))
