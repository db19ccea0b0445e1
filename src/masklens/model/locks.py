"""One thread at a time uses a model: hooks, mode and attention implementation are states of the module."""

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

    It is found by the module, so that two subjects over one model, and an adapter over a model, have one.
    Leave a block that holds it in the thread that entered it: a generator must not yield inside.
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
    """Hold the locks of several modules, taken in one order: two threads never wait for each other's."""
    with ExitStack() as held:
        for lock in sorted({lock_of(module) for module in modules}, key=id):
            held.enter_context(lock)
        yield
