"""One attribution as a fragment of HTML, for a notebook: its own styles only, no script.

Control and bidirectional characters are removed from everything that comes from a record, and the template
escapes it, so that a text can neither inject HTML nor change the text around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..records.layers import row_name, site_name
from .colours import MISSING, Scale, Theme, colours, hexadecimal, ink, scale
from .facts import answer_tokens, class_parts
from .labels import (
    other_target,
    part_names,
    printable,
    proof_sentences,
    readable_tokens,
    shortened,
    visible,
    with_probability,
)

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..records.generation import Generation

LEVELS = 40
"""steps of colour between no score and the strongest"""
LONGEST_TOKEN = 40
LETTERS = 'style="font:13px/1.5 system-ui,sans-serif"'
"""the letters of what stands around fragments, as in templates/fragment.html"""


@dataclass(frozen=True)
class Cell:
    """One score: the name of its colour in the palette, its text, and its text on hovering."""

    colour: str
    number: str
    """hundredths of the strongest score; empty where they round to 0"""
    about: str


@dataclass(frozen=True)
class Column:
    """One token and its cells, one per site."""

    token: str
    raw: str
    """the tokenizer's own name of the token, if it is shown by its text; else empty"""
    special: bool
    answer: bool
    """whether the token belongs to the predicted answer"""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Segment:
    """One text of a pair with its name, or the whole of a single text without one."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Picture:
    """The data of one attribution for the template; all text in it is printable."""

    method: str
    prediction: str
    target: str
    classes: tuple[str, ...]
    """each with its probability, the most probable first"""
    settings: tuple[tuple[str, str], ...]
    sites: tuple[str, ...]
    segments: tuple[Segment, ...]
    legend: tuple[Cell, ...]
    """the colours from the weakest to the strongest"""
    low: str
    high: str
    meaning: str
    """what the ends of the scale stand for, if scores have a sign; else empty"""
    unit: str
    proof: str
    """the result of the verification, in a sentence; empty if it was not tried"""

    @property
    def used(self) -> list[str]:
        """The names of the colours in the picture."""
        cells = [cell for _, row in self.rows for cell in row]
        return sorted({cell.colour for cell in (*cells, *self.legend)})

    @property
    def marked(self) -> bool:
        """Whether a token belongs to a predicted answer."""
        return any(column.answer for segment in self.segments for column in segment.columns)

    @property
    def rows(self) -> Iterator[tuple[str, list[Cell]]]:
        """The name and the cells of each site."""
        for i, site in enumerate(self.sites):
            yield site, [column.cells[i] for segment in self.segments for column in segment.columns]


def fragment(attribution: Attribution, per_site: bool | None = None) -> str:
    """HTML of one attribution for a notebook: inline styles, with other colours in dark mode."""
    shown = picture(attribution, per_site)
    return template("fragment.html").render(p=shown, palette=palette("light"), dark=palette("dark"))


def steps_fragment(generation: Generation) -> str:
    """HTML of an answer at the first site for a notebook: a part to open for each step, with its
    probability."""
    parts = []
    for i, whole in enumerate(generation.attributions()):
        one = replace(whole, sites=whole.sites[:1], scores=whole.scores[:1])
        head = escape(visible(f"{one.target.strip(' ')}   {generation.probabilities[i]:.0%}"))
        start = f"<details{' open' if i == 0 else ''}><summary {LETTERS}>{head}</summary>"
        parts.append(f"{start}{fragment(one)}</details>")
    return "\n".join(parts)


def picture(attribution: Attribution, per_site: bool | None = None) -> Picture:
    """Lay an attribution out for the template."""
    a, shown = attribution, scale(attribution, per_site)
    names = tuple(site_name(site) for site in a.sites)
    marked = set(answer_tokens(a))
    columns = [_column(a, shown, names, j, token, j in marked) for j, token in enumerate(readable_tokens(a))]
    settings = ((printable(row_name(str(name))), printable(str(value))) for name, value in a.settings.items())
    high = "1" if shown.strongest is None else f"{shown.strongest:.3g}"
    return Picture(
        method=printable(a.method),
        prediction=printable(
            with_probability(a.prediction, a.verification) if a.verification else a.prediction
        ),
        target=printable(a.target),
        classes=tuple(class_parts(a)),
        settings=tuple(settings),
        sites=names,
        segments=tuple(_segments(a, columns)),
        legend=_legend(shown.signed),
        low=f"−{high}" if shown.signed else "0",
        high=high,
        meaning="" if not shown.signed else "against · for the target",
        unit=_unit(a, shown, high),
        proof=f"{site_name(a.verification.site)}: {proof_sentences(a.verification)}{other_target(a)}"
        if a.verification
        else "",
    )


def _segments(a: Attribution, columns: Sequence[Column]) -> Iterator[Segment]:
    for number, name in enumerate(part_names(a) or ("",)):
        yield Segment(
            name, tuple(c for c, s in zip(columns, a.segments, strict=True) if not name or s == number)
        )


def _column(a: Attribution, shown: Scale, names: Sequence[str], j: int, token: str, answer: bool) -> Column:
    raw, cells = printable(a.tokens[j]) if token != a.tokens[j] else "", []
    for name, score, share in zip(names, a.scores[:, j], shown.values[:, j], strict=True):
        cells.append(_cell(float(share), shown.signed, f"{name}: {_signed(f'{score:.4g}')}"))
    return Column(shortened(printable(token), LONGEST_TOKEN), raw, a.special[j], answer, tuple(cells))


def _cell(share: float, signed: bool, about: str) -> Cell:
    if np.isnan(share):
        return Cell("x", "–", about)
    level, hundredths = round(abs(share) * LEVELS), round(share * 100)
    letter = ("n" if share < 0 else "p") if signed else "q"
    return Cell(f"{letter}{level}", _signed(str(hundredths)) if hundredths else "", about)


def _legend(signed: bool) -> tuple[Cell, ...]:
    return tuple(_cell(float(s), signed, "") for s in np.linspace(-1.0 if signed else 0.0, 1.0, 17))


def _unit(a: Attribution, shown: Scale, high: str) -> str:
    if shown.strongest is None:
        return f"numbers: hundredths of each layer's largest score, {shown.range(a.sites)}"
    return "numbers: percent" if a.merge == "max" else f"numbers: hundredths of {high}"


def _signed(number: str) -> str:
    """The number with a minus sign, which is as wide as a plus sign, instead of a hyphen."""
    return number.replace("-", "−")


@lru_cache(maxsize=2)
def palette(theme: Theme) -> dict[str, tuple[str, str]]:
    """Background and ink of every colour by name: q0... sequential, p0... for, n0... against, x missing."""
    shares = np.linspace(0.0, 1.0, LEVELS + 1)
    ramps = {
        "q": colours(shares, False, theme),
        "p": colours(shares, True, theme),
        "n": colours(-shares, True, theme),
    }
    named = {f"{letter}{i}": colour for letter, ramp in ramps.items() for i, colour in enumerate(ramp)}
    named["x"] = np.array(MISSING[theme])
    return {name: (hexadecimal(colour), ink(colour)) for name, colour in named.items()}


@lru_cache(maxsize=2)
def template(name: str) -> Any:
    """A template of this package. Values that are put into it are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("masklens.reports")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
