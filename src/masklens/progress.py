"""Progress on a terminal: what is under way, as a bar once it has taken a moment.

Work that may take long says so with `stage` and `track`. Nothing is shown unless somebody asks for it: the
command line does on a terminal, and so does `show_progress=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Update = Callable[..., None]
"""takes `completed`, `total` or `description`"""
MOMENT = 0.5
"""seconds after which a wait is shown"""

_bars: ContextVar[Any] = ContextVar("bars", default=None)


@contextmanager
def showing(wanted: bool = True) -> Iterator[None]:
    """Show the progress of all that is done in the block, on standard error."""
    if not wanted or _bars.get() is not None:
        yield
        return
    with _make_bars() as bars:
        token = _bars.set(bars)
        try:
            yield
        finally:
            _bars.reset(token)


@contextmanager
def stage(what: str, total: int | None = None, completed: int = 0) -> Iterator[Update]:
    """A piece of work; what it gives is to be told how much of the total is completed."""
    bars = _bars.get()
    if bars is None:
        yield lambda **now: None
        return
    task = bars.add_task(what, total=total, completed=completed)
    try:
        yield lambda **now: bars.update(task, **now)
    finally:
        bars.remove_task(task)


def track(items: Collection[T], what: str) -> Iterator[T]:
    """The items, with a bar of how many of them are done."""
    with stage(what, len(items)) as update:
        for done, item in enumerate(items, start=1):
            yield item
            update(completed=done)


def _make_bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    class Bars(Progress):
        """Bars that come when a task has taken a moment, and go with it."""

        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table([task for task in self.tasks if (task.elapsed or 0) > MOMENT])

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
    return Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
