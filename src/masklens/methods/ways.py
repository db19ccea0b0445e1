"""The ways to explain that a user can choose from: every method, and every fitted lens that was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..attribution import Explanations, Text
from ..errors import MethodError, did_you_mean
from ..model.subject import Subject
from ..progress import numbered, step
from .explain import explain
from .registry import METHODS, Method, find, load_all

COMMON = ("integrated_gradients", "decoded_gradcam", "gradcam", "grad_x_input", "attention", "occlusion")
"""methods that are listed first"""
LENS_COST = "1.2"
"""the cost of explaining with a fitted lens, in forward passes"""


@dataclass(frozen=True)
class Way:
    """A way to explain: a method with its options, one of which may be a lens."""

    method: Method
    options: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False
    """whether it is selected when the page opens"""

    @property
    def lenses(self) -> list[Any]:
        return [self.options["lens"]] if "lens" in self.options else []

    @property
    def cost(self) -> str:
        return LENS_COST if self.lenses else self.method.cost

    def takes(self, option: str) -> bool:
        return option in self.method.options or (option == "baselines" and bool(self.method.baseline))


def ways(lenses: Sequence[Any] = (), lm_head: Any = None) -> dict[str, Way]:
    """All ways, by name: the lenses, the common methods, then the others whose requirements are met: the
    cheapest first, and those for comparison last."""
    load_all()
    found = _lens_ways(lenses)
    others = sorted(METHODS.values(), key=lambda method: (method.needs == "nothing", method.passes))
    for name in dict.fromkeys([*COMMON, *(method.name for method in others)]):
        lacks = name == "diffmask" or (name == "decoded_gradcam" and lm_head is None)
        if not lacks and not METHODS[name].is_preset:
            found[name] = _method_way(name, lm_head, chosen=name in COMMON[:2])
    return found


def find_ways(
    names: Sequence[str],
    default: str,
    lenses: Sequence[Any] = (),
    lm_head: Any = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Way]:
    """The ways for the given names of methods. Lenses that were given are always included.

    `options` go to every way that has them. An option that no way has is an error.
    """
    wanted = [find(name).name for name in names or ([] if lenses else [default])]
    found = _lens_ways(lenses)
    found |= {name: _method_way(name, lm_head) for name in wanted if name != "diffmask" or not lenses}
    if lm_head is not None and "decoded_gradcam" not in found:
        raise MethodError("lm_head= is for decoded_gradcam; choose it as well, or leave lm_head= out")
    for option in options or {}:
        if not any(way.takes(option) for way in found.values()):
            _refuse(option, found)
    return {name: _with_options(way, options or {}) for name, way in found.items()}


def _refuse(option: str, found: Mapping[str, Way]) -> None:
    """The error about an option that no way has."""
    if len(found) == 1:
        next(iter(found.values())).method.check_options([option])
    known = [name for way in found.values() for name in way.method.options]
    raise MethodError(f"none of {', '.join(found)} has an option {option!r}{did_you_mean(option, known)}")


def _lens_ways(lenses: Sequence[Any]) -> dict[str, Way]:
    overs = [f"diffmask ({lens.over})" if isinstance(lens.over, str) else "diffmask" for lens in lenses]
    method = find("diffmask")
    return {name: Way(method, {"lens": lens}, True) for name, lens in zip(overs, lenses, strict=True)}


def _method_way(name: str, lm_head: Any, chosen: bool = False) -> Way:
    given = name == "decoded_gradcam" and lm_head is not None
    return Way(METHODS[name], {"lm_head": lm_head} if given else {}, chosen)


def _with_options(way: Way, options: Mapping[str, Any]) -> Way:
    own = {name: value for name, value in options.items() if way.takes(name)}
    return Way(way.method, {**way.options, **own}, way.chosen)


def explain_ways(
    subject: Subject, texts: Sequence[Text], chosen: Mapping[str, Way], **common: Any
) -> dict[str, Explanations]:
    """Explain the same texts in several ways. Returns the results by the names of the ways."""
    found = {}
    for number, (name, way) in numbered(chosen.items(), "method"):
        with step(number):
            found[name] = explain(subject, texts, way.method.name, **common, **way.options)
    return found
