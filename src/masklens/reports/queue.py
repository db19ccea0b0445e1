"""A queue of explanations with one worker: progress, cancelling, and a history of bounded size."""

from __future__ import annotations

import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..attribution import Text
from ..errors import MasklensError
from .labels import visible

LONGEST_SHOWN = 200
"""characters of a text that the state of a submission shows"""
ENDED = ("done", "failed", "cancelled")


class Cancelled(Exception):
    """Raised when the user has cancelled a submission."""


class QueueFull(MasklensError):
    """Raised when more submissions are waiting than the queue takes."""

    status = 429


@dataclass(eq=False)
class Submission:
    """One text to explain with one or more methods."""

    text: Text
    methods: list[str]
    target: Any = None
    every_site: bool = False
    like: str | None = None
    """the id of the submission that this one changes: another target, or an edited text"""
    messages: list[dict[str, str]] | None = None
    """the messages, if the text is a chat"""
    new_tokens: int | None = None
    """how many tokens the model's answer may have; None if the text itself is explained"""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "queued"
    done: int = 0
    """the number of finished methods"""
    passes: int = 0
    """the number of forward passes so far"""
    problems: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    """the results as JSON"""
    result: dict[str, Any] | None = None
    """the text as the viewer shows it"""
    unwanted: bool = False

    def check(self) -> None:
        """Count a forward pass, and stop the submission if it was cancelled. Called before every forward
        pass."""
        self.passes += 1
        if self.unwanted:
            raise Cancelled

    def status(self) -> dict[str, Any]:
        """The state of the submission, for the page."""
        now = self.methods[self.done] if self.state == "running" and self.done < len(self.methods) else None
        shown = {name: getattr(self, name) for name in ("id", "state", "done", "passes", "result")}
        problems = [visible(problem) for problem in self.problems]
        parts = [self.text] if isinstance(self.text, str) else self.text
        text = visible(" · ".join(parts))[:LONGEST_SHOWN]
        return shown | {"problems": problems, "total": len(self.methods), "now": now, "text": text}


class Queue:
    """Submissions in the order in which they came, one at a time, in a thread of their own."""

    def __init__(self, work: Callable[[Submission], None], waiting: int = 16, history: int = 200) -> None:
        self._work, self._most_waiting, self._most_kept = work, waiting, history
        self._submissions: dict[str, Submission] = {}
        self._waiting: deque[Submission] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="masklens-worker", daemon=True)
        self._thread.start()

    def submit(self, submission: Submission) -> Submission:
        """Put a submission at the end of the queue."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                raise QueueFull(f"{len(self._waiting)} jobs are waiting; wait for one to end, or cancel one")
            self._submissions[submission.id] = submission
            self._waiting.append(submission)
            self._forget()
            self._changed.notify()
        return submission

    def _forget(self) -> None:
        """Drop the oldest submissions that have ended."""
        ended = [submission for submission in self._submissions.values() if submission.state in ENDED]
        for submission in ended[: max(0, len(self._submissions) - self._most_kept)]:
            del self._submissions[submission.id]

    def get(self, name: str) -> Submission | None:
        return self._submissions.get(name)

    def submissions(self) -> list[Submission]:
        """All submissions that are remembered, the oldest first."""
        with self._changed:
            return list(self._submissions.values())

    def place(self, submission: Submission) -> int:
        """How many submissions come before this one."""
        with self._changed:
            return self._waiting.index(submission) if submission in self._waiting else 0

    def cancel(self, submission: Submission) -> None:
        """Stop a submission before its next forward pass, or take it out of the queue."""
        with self._changed:
            submission.unwanted = True
            if submission in self._waiting:
                self._waiting.remove(submission)
                submission.state = "cancelled"

    def remove(self, submission: Submission) -> None:
        """Cancel a submission and forget it."""
        self.cancel(submission)
        with self._changed:
            self._submissions.pop(submission.id, None)

    def close(self) -> None:
        """Cancel everything and end the worker."""
        for submission in self.submissions():
            self.cancel(submission)
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
                submission = self._waiting.popleft()
                submission.state = "running"
            submission.state = self._end(submission)

    def _end(self, submission: Submission) -> str:
        """Do a submission. Returns how it ended."""
        try:
            self._work(submission)
        except Cancelled:
            return "cancelled"
        except Exception as error:  # no error of a submission may end the worker
            traceback.print_exc()
            submission.problems.append(f"{type(error).__name__}: {error}")
        return "done" if submission.result else "failed"
