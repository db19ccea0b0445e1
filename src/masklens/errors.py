"""Typed errors. Each message says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class MasklensError(Exception):
    """Base of every error that a user's input or model can cause."""


class SiteError(MasklensError):
    """A site that does not exist, that the model never reached, or a replacement of another shape."""


class OutputError(MasklensError):
    """The model produced something that cannot be explained, such as NaN."""


class ModelError(MasklensError):
    """The model's architecture or head cannot be handled as it is."""


class TextError(MasklensError):
    """A text that the tokenizer or the model cannot take."""


class TargetError(MasklensError):
    """A target that the task does not have."""


class MethodError(MasklensError):
    """An unknown method, an unknown option, or a missing input of a method."""


class LensError(MasklensError):
    """A lens that does not fit the model, or a folder that does not hold one."""


class FileError(MasklensError):
    """A file of attributions or texts that cannot be read or written."""


class TrainingError(MasklensError):
    """Training cannot start or continue."""


class CorpusError(MasklensError):
    """A corpus run that cannot start, continue or be resumed."""


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
