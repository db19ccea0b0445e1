"""One lock per model: hooks, mode and attention implementation belong to the module, so threads take
turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_locks: WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
_finding = threading.Lock()


def lock_of(module: nn.Module) -> AbstractContextManager[Any]:
    """The re-entrant lock of a module; modules that share a part share the lock.

    Two subjects over the same model, or over a model and its adapter, get the same lock. A block that holds
    the lock must be left in the thread that entered it, so a generator must not yield inside.
    """
    with _finding:
        if module not in _locks:
            parts = list(module.modules())
            lock = next((_locks[part] for part in parts if part in _locks), None) or threading.RLock()
            for part in parts:
                _locks.setdefault(part, lock)
        return _locks[module]


@contextmanager
def locks_of(*modules: nn.Module) -> Iterator[None]:
    """Hold the locks of several modules. They are always taken in the same order, so there is no deadlock."""
    with ExitStack() as held:
        for lock in sorted({lock_of(module) for module in modules}, key=id):
            held.enter_context(lock)
        yield
