"""The colours of all pictures: blue for scores that support the target, orange for scores against it.

Scores with both signs get a diverging scale with 0 in its middle; scores without negative values get a
sequential scale from pale teal to deep blue. In both, the lightness in OKLab (Ottosson 2020) is linear in the
score, so that equal steps of the score look equal. Blue and orange can be told apart with every common kind
of colour blindness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..records.layers import site_name

if TYPE_CHECKING:
    from ..attribution import Attribution

Theme = Literal["light", "dark"]

# Stops of the ramps from no score to the strongest, in OKLCh: lightness, chroma, hue in degrees.
RAMPS: dict[Theme, dict[str, list[tuple[float, float, float]]]] = {
    "light": {
        "for": [(0.98, 0.003, 250), (0.75, 0.095, 250), (0.50, 0.145, 255)],
        "against": [(0.98, 0.003, 60), (0.75, 0.105, 60), (0.50, 0.120, 48)],
        "only": [(0.98, 0.006, 190), (0.72, 0.095, 205), (0.40, 0.130, 265)],
    },
    "dark": {
        "for": [(0.27, 0.012, 260), (0.55, 0.125, 252), (0.80, 0.105, 245)],
        "against": [(0.27, 0.012, 260), (0.55, 0.120, 50), (0.80, 0.125, 65)],
        "only": [(0.27, 0.012, 260), (0.55, 0.110, 245), (0.87, 0.100, 190)],
    },
}

MISSING: dict[Theme, tuple[float, float, float]] = {"light": (0.85, 0.85, 0.85), "dark": (0.38, 0.38, 0.38)}
"""the colour of a score that is not finite"""


@dataclass(frozen=True)
class Scale:
    """Scores as shares of the score that is drawn in the strongest colour."""

    values: np.ndarray
    """(rows, tokens) in [-1, 1], or [0, 1] where not signed; NaN where the score is not finite"""
    signed: bool
    strongest: float | None
    """the score at 1, or None where each row has its own"""
    largest: tuple[float, ...]
    """the score at 1 in each row"""

    def range(self, sites: Sequence[int]) -> str:
        """The least and the greatest of the layers' largest scores, with their layers."""
        ends = (int(np.argmin(self.largest)), int(np.argmax(self.largest)))
        return " to ".join(f"{self.largest[i]:.3g} ({site_name(sites[i])})" for i in ends)


def scale(attribution: Attribution, per_site: bool | None = None) -> Scale:
    """The colours of an attribution, which all pictures share.

    Keep probabilities are drawn as they are. Other scores have no unit that layers share: a gradient is some
    hundred times smaller at the last block than at the first. So each layer is divided by its own largest
    absolute score, as in the heat maps of De Cao et al. (2020). `per_site` says otherwise.
    """
    a = attribution
    if per_site is None:
        per_site = a.merge != "max" and len(a.sites) > 1
    return shares(a.scores, a.special, a.merge, per_site)


def shares(scores: np.ndarray, special: Sequence[bool], merge: str, per_row: bool = False) -> Scale:
    """Divide scores (rows, tokens) by 1 for probabilities, else by the largest absolute score; with `per_row`
    each row by its own.

    The scores of special tokens are ignored for that, unless no other token has a score.
    """
    scores = np.where(np.isfinite(scores), scores, np.nan)
    size = np.nan_to_num(np.abs(scores))
    signed = bool((scores < 0).any())
    if per_row:
        strongest = _largest(size, special, axis=1)
    else:
        strongest = np.array(1.0) if merge == "max" else _largest(size, special)
    strongest = np.where(strongest > 0, strongest, 1.0)
    values = np.clip(scores / strongest, -1.0, 1.0)
    largest = tuple(np.broadcast_to(strongest, (len(scores), 1))[:, 0].tolist())
    return Scale(values, signed, None if per_row and len(scores) != 1 else strongest.item(), largest)


def _largest(size: np.ndarray, special: Sequence[bool], axis: int | None = None) -> np.ndarray:
    """The largest of the sizes (sites, tokens), without special tokens unless all others are 0."""
    own = np.where(np.asarray(special, dtype=bool), 0.0, size).max(axis, initial=0.0, keepdims=axis == 1)
    return np.where(own > 0, own, size.max(axis, initial=0.0, keepdims=axis == 1))


def colours(values: np.ndarray, signed: bool, theme: Theme = "light") -> np.ndarray:
    """Colours (..., red green blue) in [0, 1] of shares (...) in [-1, 1]; NaN is drawn as no score."""
    values = np.nan_to_num(np.asarray(values, dtype=float))
    ramps = RAMPS[theme]
    if not signed:
        return _ramp(ramps["only"], values)
    return np.where((values < 0)[..., None], _ramp(ramps["against"], -values), _ramp(ramps["for"], values))


def hexadecimal(colour: np.ndarray) -> str:
    """A colour as #rrggbb."""
    return "#" + "".join(f"{round(float(part) * 255):02x}" for part in colour)


def ink(colour: np.ndarray) -> str:
    """Black or white, whichever is easier to read on the colour; the contrast is at least 4.5."""
    return "#000000" if luminance(colour) > 0.179 else "#ffffff"


def luminance(colour: np.ndarray) -> float:
    """Relative luminance, as WCAG 2 defines it for the contrast of text."""
    parts = np.asarray(colour, dtype=float)
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _ramp(stops: list[tuple[float, float, float]], shares: np.ndarray) -> np.ndarray:
    """Colours between the stops. A stop's position follows from its lightness, which is linear."""
    lightness, chroma, hue = np.array(stops).T
    places = (lightness - lightness[0]) / (lightness[-1] - lightness[0])
    angle = np.radians(hue)
    lab = (lightness, chroma * np.cos(angle), chroma * np.sin(angle))
    return _rgb(np.stack([np.interp(shares, places, part) for part in lab], axis=-1))


def _rgb(lab: np.ndarray) -> np.ndarray:
    """sRGB (..., 3) of OKLab (..., 3), cut to what a screen can show."""
    to_cones = [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.291485548],
    ]
    to_linear = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
    linear = np.clip((lab @ np.array(to_cones).T) ** 3 @ np.array(to_linear).T, 0.0, 1.0)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
