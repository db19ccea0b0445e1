"""Progress bars on a terminal. If standard error is a log, a line is written from time to time instead.

Work that may take long reports its progress with `stage` and `track`. It is shown only inside `showing`,
which the command line and `show_progress=True` use.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Update = Callable[..., None]
"""takes `completed` or `advance`, and `description`"""
MOMENT = 0.5
"""seconds after which a bar appears"""
BETWEEN_LINES = 30.0
"""seconds between two lines in a log"""
SLOW = 2.0
"""seconds after which `told` writes its line in a log"""

_bars: ContextVar[Any] = ContextVar("bars", default=None)
_steps: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())


@contextmanager
def showing(wanted: bool = True) -> Iterator[None]:
    """Show the progress of all work inside the block on standard error."""
    if not wanted or _bars.get() is not None:
        yield
        return
    with _make_bars() if sys.stderr.isatty() else Lines() as bars:
        token = _bars.set(bars)
        try:
            yield
        finally:
            _bars.reset(token)


@contextmanager
def stage(what: str, total: int | None = None, completed: int = 0) -> Iterator[Update]:
    """A piece of work. Yields a function to call with how much of the total is completed."""
    bars = _bars.get()
    if bars is None:
        yield lambda **now: None
        return
    before = f"{', '.join(_steps.get())}: " if _steps.get() else ""
    task = bars.add_task(before + what, total=total, completed=completed)

    def update(**now: Any) -> None:
        described = {"description": before + now["description"]} if "description" in now else {}
        bars.update(task, **now | described)

    try:
        yield update
    finally:
        bars.remove_task(task)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Inside the block, what is said about any work begins with the name of this step, if it has one. Steps
    may be nested: "method 4 of 11, lime: samples"."""
    token = _steps.set((*_steps.get(), *[what] * bool(what)))
    try:
        yield
    finally:
        _steps.reset(token)


def numbered(items: Collection[T], noun: str) -> Iterator[tuple[str, T]]:
    """The items, each with the name of its step, such as "method 4 of 11"; a single item has none."""
    for number, item in enumerate(items, start=1):
        yield f"{noun} {number} of {len(items)}" if len(items) > 1 else "", item


@contextmanager
def told(what: str) -> Iterator[None]:
    """In a log, write a line about work that takes longer than SLOW seconds."""
    if not isinstance(_bars.get(), Lines):
        yield
        return
    timer = threading.Timer(SLOW, print, (what,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def track(items: Collection[T], what: str) -> Iterator[T]:
    """The items, with a bar that shows how many are done."""
    with stage(what, len(items)) as update:
        for item in items:
            yield item
            update(advance=1)


class Task(NamedTuple):
    description: str
    total: int | None
    completed: int


class Lines:
    """For logs: writes a line about the innermost piece of work every BETWEEN_LINES seconds."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.told = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *about: object) -> None:
        self.tasks.clear()

    def add_task(self, description: str, total: int | None, completed: int) -> int:
        task = max(self.tasks, default=0) + 1
        self.tasks[task] = Task(description, total, completed)
        return task

    def update(self, task: int, advance: int = 0, **now: Any) -> None:
        before = self.tasks[task]
        self.tasks[task] = before._replace(completed=before.completed + advance)._replace(**now)
        what, total, completed = self.tasks[task]
        if completed < (total or 0) and time.monotonic() - self.told >= BETWEEN_LINES:
            self.told = time.monotonic()
            print(f"{what} ({completed:,} of {total:,})", file=sys.stderr, flush=True)

    def remove_task(self, task: int) -> None:
        self.tasks.pop(task, None)  # after an error, work may end later than the display


def _make_bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    class Bars(Progress):
        """Bars that appear when a task has taken a moment, and disappear when it ends."""

        def get_renderables(self) -> Iterator[Any]:
            yield self.make_tasks_table([task for task in self.tasks if (task.elapsed or 0) > MOMENT])

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
    return Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
