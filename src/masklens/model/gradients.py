"""Whether a gradient passes through every part of a model.

A part with quantised weights often computes its output without autograd. The gradient then goes around it,
through the residual connection, and is wrong without a word. So parts are looked at as they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .modes import without_derivative_no_gradient
from .tap import Point, after_each

CHANGE = 0.02
"""how far an input is moved to see whether an output depends on it, as a share of its largest number"""


class Passage:
    """Where a gradient was seen to pass through a model: it is looked at once for each set of edited sites.

    It is looked at again after a run without gradients, in which some 4-bit layers pack their weights: then
    they pass none.
    """

    def __init__(self) -> None:
        self._seen = set[frozenset[int]]()
        self._tables = set[nn.Module]()
        """parts whose output does not depend on a state; to see that, one has to wait for a GPU"""

    def forget(self) -> None:
        self._seen.clear()

    @contextmanager
    def looked_at(self, module: nn.Module, points: Iterable[Point], sites: Iterable[int]) -> Iterator[None]:
        """Inside the block, which is one run, a part of the model that passes no gradient is a ModelError."""
        edited = frozenset(sites)
        if not torch.is_grad_enabled():
            self.forget()
        if not torch.is_grad_enabled() or edited in self._seen:
            yield
            return
        look = Look(module, {point.module for point in points}, self._tables)
        parts = [part for part in module.modules() if not _is_plain(part)]
        with without_derivative_no_gradient(), after_each(parts, look):
            yield
        if look.entered:
            self._seen.add(edited)


class Look:
    """A ModelError for a part whose output depends on a state with a gradient, and has none itself.

    Args:
        module: the whole model.
        tapped: the modules at its sites. A part around one of them is not looked at: an edit may end a
            gradient.
        tables: parts whose output is known not to depend on a state; the set grows.
    """

    def __init__(self, module: nn.Module, tapped: Set[nn.Module], tables: set[nn.Module]) -> None:
        self.module, self.tapped, self.tables = module, tapped, tables
        self.entered = False
        """whether a gradient has entered any part"""

    def __call__(self, part: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Look at a part that was called."""
        if not any(given.requires_grad for given in _tensors((args, kwargs))):
            return
        self.entered = True
        made = [one for one in _tensors(output) if one.is_floating_point() or one.is_quantized]
        if not made or any(one.requires_grad for one in made) or part in self.tables or self._around(part):
            return
        if _depends(part, args, kwargs, made):
            raise self._blocked(part)
        self.tables.add(part)

    def _around(self, part: nn.Module) -> bool:
        return any(inner in self.tapped for inner in part.modules() if inner is not part)

    def _blocked(self, part: nn.Module) -> ModelError:
        name = next((name for name, one in self.module.named_modules() if one is part), "") or "the model"
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        return ModelError(
            f"{name} ({kind}) passes no gradient, as layers with quantised weights often do not, so scores "
            f"from gradients would be wrong; use a method without gradients, such as occlusion, lime or "
            f"shapley, or load the model without quantisation"
        )


def _is_plain(part: nn.Module) -> bool:
    """Whether it is a module of torch.nn as it is, with weights that are ordinary numbers: gradients pass."""
    weights = (weight for weight in part._parameters.values() if weight is not None)
    return (
        type(part).__module__.startswith("torch.nn.modules.")
        and "forward" not in vars(part)
        and all(type(weight) is nn.Parameter and weight.is_floating_point() for weight in weights)
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in arguments or an output."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


@torch.no_grad()
def _depends(part: nn.Module, args: tuple, kwargs: dict[str, Any], made: list[Tensor]) -> bool:
    """Whether the numbers of an output follow those of the input. Tables of positions or rotary angles, which
    read only the shape or the type of a state, do not."""
    output = part.forward(*_moved(args), **_moved(kwargs))
    again = [one for one in _tensors(output) if one.is_floating_point() or one.is_quantized]
    return len(again) != len(made) or not all(map(torch.equal, again, made))


def _moved(values: Any) -> Any:
    """The same values; tensors with a gradient are moved a little, each feature by another amount."""
    if isinstance(values, Tensor):
        return _shifted(values) if values.requires_grad else values
    if isinstance(values, dict):
        return {name: _moved(value) for name, value in values.items()}
    return type(values)(map(_moved, values)) if type(values) in (tuple, list) else values


def _shifted(state: Tensor) -> Tensor:
    """A state (..., width) plus a ramp over the features from -CHANGE to CHANGE of its largest number."""
    size = state.abs().max() if state.any() else 1.0
    width = state.shape[-1] if state.dim() else 1
    return state + size * torch.linspace(-CHANGE, CHANGE, width).to(state).reshape(state.shape[-1:])
