"""Record and replace states inside any torch module: the only place in the package with hooks.

    points = {0: Point(net.embed), 1: Point(net.body)}
    with tap(points, record=[0], replace={1: new_state}) as seen:
        output = net(x)
    seen[0]                                     # what the module at point 0 returned

A replacement is a tensor, or a function from the state to a tensor of the same shape. Gradients flow
through recorded and replaced states. At the end of the block all hooks are removed, also after an exception.
A hook sees the calls of every thread: `Subject` holds the model's lock around a tap (see locks.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from ..errors import SiteError
from .locks import lock_of

K = TypeVar("K")
Replacement = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Point:
    """The place of a state: a tensor that enters or leaves a module.

    A module that is called several times in one forward pass (ALBERT's shared layer) has one point for each
    call. `call=None` means every call.
    """

    module: nn.Module
    side: Literal["input", "output"] = "output"
    call: int | None = None
    copied: bool = False
    """whether the model gets a copy of the state, because it changes it in place, as CTRL does"""

    def __str__(self) -> str:
        return f"{self.side} of {type(self.module).__name__}" + (
            f", call {self.call}" if self.call is not None else ""
        )


@contextmanager
def watch(module: nn.Module, call: Callable[[], None]) -> Iterator[None]:
    """Inside the block, run `call` before every forward pass of the module in this thread. An exception stops
    the pass."""
    own = threading.get_ident()
    with lock_of(module):
        handle = module.register_forward_pre_hook(lambda *_: call() if threading.get_ident() == own else None)
    try:
        yield
    finally:
        with lock_of(module):
            handle.remove()


@contextmanager
def after_each(
    modules: Iterable[nn.Module], look: Callable[[nn.Module, tuple, dict[str, Any], Any], None]
) -> Iterator[None]:
    """Inside the block, call `look(module, args, kwargs, output)` whenever one of the modules has run, before
    a `tap` inside the block replaces its output. An exception stops the pass."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(look, with_kwargs=True))
        yield


@contextmanager
def tap(
    points: Mapping[int, Point],
    record: Iterable[int] = (),
    replace: Mapping[int, Replacement] | None = None,
    skip: Mapping[Point, int] | None = None,
) -> Iterator[dict[int, Tensor]]:
    """Hook the points named in `record` and `replace`; yield the dict of recorded states.

    If a state is both replaced and recorded, the record is the replacement. Modules in `skip` are not
    computed: they return their first input, in the form that `output_lengths` found.
    Raises SiteError for an unknown point, for a replacement of another shape and, at the end of the block,
    for a point that the forward pass never reached.
    """
    record, replace = tuple(record), dict(replace or {})
    wanted = dict.fromkeys([*record, *replace])
    for key in wanted:
        if key not in points:
            raise SiteError(f"unknown site {key!r}; this subject has sites {sorted(points)}")
    seen: dict[int, Tensor] = {}
    fired: set[int] = set()

    def handle(key: int, state: Tensor) -> Tensor:
        if key in replace:
            state = _replaced(key, state, replace[key])
        if key in record:
            seen[key] = state
        fired.add(key)
        return state.clone() if points[key].copied else state

    skipped = ((point, point.module, length) for point, length in (skip or {}).items())
    hooked = ((points[key], (points[key].module, points[key].side), key) for key in wanted)
    with ExitStack() as stack:
        for module, calls in _by_call(skipped):
            stack.enter_context(overridden(module, "forward", _passing(module.forward, calls)))
        for (module, side), keys in _by_call(hooked):
            stack.enter_context(_hooked(module, side, keys, handle))
        yield seen
    missing = [key for key in wanted if key not in fired]
    if missing:
        names = "; ".join(f"site {key} ({points[key]})" for key in missing)
        raise SiteError(
            f"never reached in the forward pass: {names}. The module is not called, or is called under "
            f"another name; register the family with the module that is really run."
        )


def _replaced(key: int, state: Tensor, replacement: Replacement) -> Tensor:
    new = replacement(state) if callable(replacement) else replacement
    if not isinstance(new, Tensor) or new.shape != state.shape:
        given = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise SiteError(f"site {key} holds a state of shape {tuple(state.shape)}; the replacement is {given}")
    return new.to(device=state.device, dtype=state.dtype)


def _by_call(entries: Iterable[tuple[Point, K, int]]) -> Iterable[tuple[K, dict[int | None, int]]]:
    """Entries (point, group, number) as {call: number} for each group: one hook serves all calls."""
    groups: dict[K, dict[int | None, int]] = {}
    for point, group, number in entries:
        groups.setdefault(group, {})[point.call] = number
    return groups.items()


@contextmanager
def _hooked(
    module: nn.Module, side: str, keys: Mapping[int | None, int], handle: Callable[[int, Tensor], Tensor]
) -> Iterator[None]:
    """One forward (pre-)hook that hands each wanted call's tensor to `handle`."""
    call = -1

    def edit(values: Any) -> Any:
        nonlocal call
        call += 1
        key = keys.get(call, keys.get(None))
        return values if key is None else _with_first(values, lambda state: handle(key, state))

    def pre_hook(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (edit(args), kwargs) if args else (args, edit(kwargs))

    if side == "output":
        hook = module.register_forward_hook(lambda _module, _args, output: edit(output))
    else:
        hook = module.register_forward_pre_hook(pre_hook, with_kwargs=True)
    with hook:
        yield


def _with_first(values: Any, edit: Callable[[Tensor], Tensor]) -> Any:
    """Apply `edit` to a tensor, or to the first element of a tuple, list or model output."""
    if isinstance(values, Tensor):
        return edit(values)
    if isinstance(values, tuple | list) and values and isinstance(values[0], Tensor):
        return type(values)([edit(values[0]), *values[1:]])
    if isinstance(values, dict) and values:
        name = next(iter(values))
        return type(values)(values | {name: edit(values[name])})
    raise SiteError(f"a site must hold a tensor or start with one; the module gave {type(values).__name__}")


def _passing(compute: Callable[..., Any], calls: Mapping[int | None, int]) -> Callable[..., Any]:
    """A `forward` that returns its first input instead of computing, on the given calls.

    `calls` says for each skipped call what its output looks like: 0 for a bare tensor, n for a tuple of n.
    """
    call = -1

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal call
        call += 1
        length = calls.get(call, calls.get(None))
        if length is None:
            return compute(*args, **kwargs)
        state = args[0] if args else next(iter(kwargs.values()))
        return state if length == 0 else (state, *[None] * (length - 1))

    return forward


@contextmanager
def gathering(module: nn.Module, positions: Tensor) -> Iterator[list[nn.Module]]:
    """Inside the block, the module gets only the states at the positions (examples, steps), -1 for none.

    Yields a list to which the module is added when it was called this way. An input whose shape is not
    (examples, tokens, width) is left as it is.
    """
    done: list[nn.Module] = []

    def gather(_module: nn.Module, args: tuple) -> tuple:
        if not args or args[0].dim() != 3 or len(args[0]) != len(positions):
            return args
        done.append(module)
        where = positions.clamp(min=0).to(args[0].device)[:, :, None]
        return args[0].gather(1, where.expand(-1, -1, args[0].shape[2])), *args[1:]

    handle = module.register_forward_pre_hook(gather)
    try:
        yield done
    finally:
        handle.remove()


@contextmanager
def recomputing(
    modules: Iterable[nn.Module],
    needed: Callable[[Tensor], bool],
    inside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Gradient checkpointing inside the block: a module whose input has a gradient, and for which `needed`
    returns true, stores only its input. Its activations are computed again in the backward pass, in the
    context `inside`."""
    from torch.utils.checkpoint import checkpoint

    how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    how["context_fn"] = lambda: (nullcontext(), Each(inside))

    def again(compute: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            state = args[0] if args else next(iter(kwargs.values()))
            if not state.requires_grad or not needed(state):
                return compute(*args, **kwargs)
            return checkpoint(compute, *args, **how, **kwargs)

        return forward

    with ExitStack() as stack:
        for module in dict.fromkeys(modules):
            stack.enter_context(overridden(module, "forward", again(module.forward)))
        yield


class Each(AbstractContextManager[None]):
    """A new context each time it is entered: a graph can be walked back through more than once."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._entered = make, list[AbstractContextManager[None]]()

    def __enter__(self) -> None:
        made = self._make()
        made.__enter__()
        self._entered.append(made)

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


@contextmanager
def overridden(module: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, replace the module's method of that name by `function`."""
    own = module.__dict__.get(name)
    setattr(module, name, function)
    try:
        yield
    finally:
        if own is None:
            delattr(module, name)
        else:
            setattr(module, name, own)


@contextmanager
def output_lengths(points: Iterable[Point]) -> Iterator[dict[Point, int]]:
    """Find out what the module of each point returns: 0 for a bare tensor, n for a tuple of n (see `skip`).

    A module that returns further tensors cannot be skipped and is left out.
    """
    lengths: dict[Point, int] = {}

    def note(point: Point, _module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            lengths[point] = 0
        elif isinstance(output, tuple) and all(rest is None for rest in output[1:]):
            lengths[point] = len(output)

    with ExitStack() as stack:
        for point in points:
            # torch's handles remove their hook at the end of the block
            stack.enter_context(point.module.register_forward_hook(partial(note, point)))
        yield lengths


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
)
_INSTALLED = "_output_capturing_hooks_installed"


@contextmanager
def keeping_hooks(module: nn.Module) -> Iterator[None]:
    """Remove the hooks that a call inside the block leaves behind.

    transformers adds permanent hooks the first time it is asked for attentions or hidden states.
    """
    before = {m: {name: set(getattr(m, name)) for name in _HOOKS} for m in module.modules()}
    flagged = {m for m in before if _INSTALLED in m.__dict__}
    try:
        yield
    finally:
        for m, kept in before.items():
            for name, keys in kept.items():
                hooks = getattr(m, name)
                for key in [key for key in hooks if key not in keys]:
                    del hooks[key]
            if m not in flagged:
                m.__dict__.pop(_INSTALLED, None)
