"""Texts with their important words highlighted, compact enough for thousands of them on a page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np

from ..attribution import Attribution
from ..viz.labels import printable

LEVELS = 9


def snippet(attribution: Attribution) -> str:
    """The words of a text; the strength of a highlight is the score relative to the text's largest."""
    words = attribution.words()
    scores = np.where(words.special, 0.0, words.scores[-1]).clip(min=0)
    largest = scores.max(initial=0.0)
    levels = np.rint(LEVELS * scores / largest).astype(int) if largest > 0 else np.zeros(len(scores), int)
    shown = zip(words.tokens, levels, words.special, strict=True)
    return " ".join(_word(printable(word), level) for word, level, special in shown if not special)


def _word(word: str, level: int) -> str:
    return f"<i class=h{level}>{escape(word)}</i>" if level else escape(word)


def style() -> str:
    """The colours of the highlights."""
    levels = "".join(f".h{k}{{background:rgba(230,120,0,{k / LEVELS:.2f})}}" for k in range(1, LEVELS + 1))
    return (
        "body{font:16px/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light;background:#fff;color:#111}i{font-style:normal;border-radius:.2em;padding:0 .1em}"
        f"b{{font-weight:600;color:#555}}{levels}"
    )


def page(title: str, texts: Iterable[tuple[Attribution, float]]) -> str:
    """A page of texts with the prediction and its probability before each."""
    rows = "\n".join(
        f"<p><b>{escape(printable(a.prediction))}: {probability:.4f}</b> {snippet(a)}</p>"
        for a, probability in texts
    )
    return document(title, rows)


def document(title: str, body: str) -> str:
    """A whole HTML document."""
    name = escape(printable(title))
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>'
        f"<style>{style()}</style>\n<h1>{name}</h1>\n{body}\n</html>\n"
    )
