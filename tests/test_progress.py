"""Progress bars: only where asked for, only for what takes a moment, gone afterwards."""

import io
import sys
import time

import pytest

import masklens as ml
import tiny
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


def lines_of(monkeypatch, work):
    """What a log holds after work for which a line is written at every step."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    with progress.showing():
        work()
    return stream.getvalue().splitlines()


def test_inner_work_says_what_it_is_for(monkeypatch):
    def work():
        for number, name in progress.numbered(["lime", "guan"], "method"):
            with progress.step(number), progress.step(name), progress.stage("samples", 5) as update:
                update(completed=4)
                update(completed=1, description="again")
        with progress.step(""), progress.stage("alone", 2) as update:
            update(completed=1)

    assert lines_of(monkeypatch, work) == [
        "method 1 of 2, lime: samples (4 of 5)",
        "method 1 of 2, lime: again (1 of 5)",
        "method 2 of 2, guan: samples (4 of 5)",
        "method 2 of 2, guan: again (1 of 5)",
        "alone (1 of 2)",
    ]
    assert list(progress.numbered(["lime"], "method")) == [("", "lime")]


def test_a_choice_says_which_method_it_is_at(monkeypatch):
    said, add = [], progress.Lines.add_task

    def noted(self, what, **more):
        said.append(what)
        return add(self, what, **more)

    monkeypatch.setattr(progress.Lines, "add_task", noted)
    texts = [f"the plot is dull {word}" for word in ("a", "and", "car", "movie")]
    subject = tiny.subject("bert")
    lines_of(monkeypatch, lambda: ml.choose(subject, texts, ["gradient", "smoothgrad"]))
    assert {"choosing", "method 2 of 2, smoothgrad: samples", "confirming"} <= set(said)
    assert "method 1 of 2, verifying gradient: running the model" in said
    assert "samples" not in said and "running the model" in said  # the random orders, for all methods


def test_slow_work_is_told_in_a_log(monkeypatch):
    monkeypatch.setattr(progress, "SLOW", 0.1)

    def work():
        with progress.told("loading the model x"):
            time.sleep(0.5)
        with progress.told("quick"):
            pass
        time.sleep(0.3)

    assert lines_of(monkeypatch, work) == ["loading the model x"]


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
