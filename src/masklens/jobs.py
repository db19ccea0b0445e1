"""A queue of explanations with one worker: progress, cancelling, and a history of bounded size."""

from __future__ import annotations

import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .attribution import Attribution, Text
from .errors import MasklensError
from .viz.labels import visible

ENDED = ("done", "failed", "cancelled")


class Cancelled(Exception):
    """The user no longer wants a job."""


class QueueFull(MasklensError):
    """More jobs are waiting than the queue takes."""

    status = 429


@dataclass(eq=False)
class Job:
    """One text to explain with one or more methods."""

    text: Text
    methods: list[str]
    target: Any = None
    every_site: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "queued"
    done: int = 0
    """methods that have ended"""
    passes: int = 0
    """forward passes of the model so far"""
    problems: list[str] = field(default_factory=list)
    attributions: list[Attribution] = field(default_factory=list)
    result: dict[str, Any] | None = None
    """the text as the viewer shows it"""
    unwanted: bool = False

    def check(self) -> None:
        """Called before every forward pass: counts it, and stops a job that was cancelled."""
        self.passes += 1
        if self.unwanted:
            raise Cancelled

    def status(self) -> dict[str, Any]:
        """What the page has to know."""
        now = self.methods[self.done] if self.state == "running" and self.done < len(self.methods) else None
        shown = {name: getattr(self, name) for name in ("id", "state", "done", "passes", "result")}
        problems = [visible(problem) for problem in self.problems]
        return shown | {"problems": problems, "total": len(self.methods), "now": now}


class Queue:
    """Jobs in the order in which they came, one at a time, in a thread of their own."""

    def __init__(self, work: Callable[[Job], None], waiting: int = 16, history: int = 200) -> None:
        self._work, self._most_waiting, self._most_kept = work, waiting, history
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="masklens-worker", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Job:
        """Put a job at the end of the queue."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                raise QueueFull(f"{len(self._waiting)} jobs are waiting; wait for one to end, or cancel one")
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._forget()
            self._changed.notify()
        return job

    def _forget(self) -> None:
        """Drop the oldest jobs that have ended."""
        ended = [job for job in self._jobs.values() if job.state in ENDED]
        for job in ended[: max(0, len(self._jobs) - self._most_kept)]:
            del self._jobs[job.id]

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def jobs(self) -> list[Job]:
        """All jobs that are remembered, the oldest first."""
        with self._changed:
            return list(self._jobs.values())

    def place(self, job: Job) -> int:
        """How many jobs come before this one."""
        with self._changed:
            return self._waiting.index(job) if job in self._waiting else 0

    def cancel(self, job: Job) -> None:
        """Stop a job before its next forward pass, or take it out of the queue."""
        with self._changed:
            job.unwanted = True
            if job in self._waiting:
                self._waiting.remove(job)
                job.state = "cancelled"

    def remove(self, job: Job) -> None:
        """Cancel a job and forget it."""
        self.cancel(job)
        with self._changed:
            self._jobs.pop(job.id, None)

    def close(self) -> None:
        """Cancel everything and end the worker."""
        for job in self.jobs():
            self.cancel(job)
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = self._waiting.popleft()
                job.state = "running"
            job.state = self._end(job)

    def _end(self, job: Job) -> str:
        """Do a job; how it ended."""
        try:
            self._work(job)
        except Cancelled:
            return "cancelled"
        except Exception as error:  # the worker must live on whatever a job does
            traceback.print_exc()
            job.problems.append(f"{type(error).__name__}: {error}")
        return "done" if job.result else "failed"
