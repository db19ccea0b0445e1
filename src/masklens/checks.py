"""Checks of what a user gave, with a hint where it was nearly right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from .errors import MethodError

LARGEST_SEED = 2**63 - 1


def did_you_mean(given: Any, known: Iterable[str]) -> str:
    """ "; did you mean 'gradcam'?" where one of the known names is close, else nothing."""
    names = {name.casefold(): name for name in known}
    close = get_close_matches(str(given).casefold(), names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def check_seed(seed: Any) -> None:
    """A MethodError unless it is a whole number that every generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) <= LARGEST_SEED:
        raise MethodError(f"seed is {seed!r:.60}; give a whole number from 0 to {LARGEST_SEED}")
