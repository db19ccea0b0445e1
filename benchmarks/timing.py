"""Ways to do the same thing, timed in turn, so that a busy machine slows them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

Way = Callable[[], object]
Times = dict[str, list[float]]
"""CPU seconds of each way in each round"""


def in_turn(ways: Mapping[str, Way], rounds: int) -> Times:
    """CPU seconds of all threads of this process: other work on the machine does not count."""
    times: Times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append(time.process_time() - start)
    return times


def ratio(times: Times, name: str, base: str) -> float:
    """The median over rounds of one way's time by another's."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
