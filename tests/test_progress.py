"""Progress bars: only where asked for, only for what takes a moment, gone afterwards."""

import io
import sys
import time

import pytest

from masklens import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_for(monkeypatch):
    """Standard error on a terminal from here on (a fixture would be too early: pytest takes it back)."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_nothing_is_shown_that_nobody_asked_for(monkeypatch):
    terminal = terminal_for(monkeypatch)
    monkeypatch.setattr(progress, "MOMENT", 0.0)
    assert list(progress.track([1, 2], "counting")) == [1, 2]
    with progress.showing(False), progress.stage("waiting"):
        time.sleep(0.2)
    assert terminal.getvalue() == ""


def test_a_long_wait_has_a_bar_and_a_short_one_none(monkeypatch):
    terminal = terminal_for(monkeypatch)
    monkeypatch.setattr(progress, "MOMENT", 0.2)
    with progress.showing():
        with progress.stage("quick"):
            pass
        for _ in progress.track(range(5), "slow work"):
            for _ in progress.track([1], "one part"):
                time.sleep(0.1)
    assert "slow work" in terminal.getvalue() and "━" in terminal.getvalue()
    assert "quick" not in terminal.getvalue() and "one part" not in terminal.getvalue()


def test_an_error_takes_its_bar_along(monkeypatch):
    terminal_for(monkeypatch)
    with progress.showing():
        with pytest.raises(ValueError, match="wrong"), progress.stage("failing"):
            raise ValueError("wrong")
        assert not progress._bars.get().tasks
    assert progress._bars.get() is None


def test_a_log_has_a_line_now_and_then(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.showing(), progress.stage("fitting", 100) as update:
        for step in (10, 20, 30):
            update(completed=step, description=f"fitting: kept {step}%")
    with progress.showing():
        late = progress.track([1, 2], "let go of late")
        next(late)
    late.close()
    assert stream.getvalue().splitlines() == ["fitting: kept 20% (20 of 100)"]
