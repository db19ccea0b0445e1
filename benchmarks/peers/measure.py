"""Time the files beside this one, in an environment that has the tools they use.

    python benchmarks/peers/measure.py CHECKPOINT NAME ... < texts.json

Each file has `ready(folder)`, which loads a tool and gives a function from texts to explanations. All of them
run in one process, with one thread, after a first call; times are CPU seconds. Prints JSON: for each name the
seconds for the first text (the median of several calls, in turn) and for all texts, or the error it ends in.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import median
from typing import Any

ROUNDS = 3

Explain = Callable[[list[str]], object]


def seconds(explain: Explain, texts: list[str]) -> float:
    start = time.process_time()
    explain(texts)
    return time.process_time() - start


def prepared(name: str, folder: str, text: str) -> Explain | str:
    """The tool's function after a first call, or the first line of its error."""
    try:
        explain = import_module(name).ready(folder)
        explain([text])
        return explain
    except Exception as error:  # whatever a tool says is what is reported
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def main(folder: str, names: Sequence[str], texts: list[str]) -> dict[str, dict[str, Any]]:
    import torch

    torch.set_num_threads(1)  # threads that wait for each other would count as work
    tools = {name: prepared(name, folder, texts[0]) for name in names}
    found: dict[str, dict[str, Any]] = {n: {"error": t} for n, t in tools.items() if isinstance(t, str)}
    working = {name: tool for name, tool in tools.items() if not isinstance(tool, str)}
    one: dict[str, list[float]] = {name: [] for name in working}
    for _ in range(ROUNDS):
        for name, tool in working.items():
            one[name].append(seconds(tool, texts[:1]))
    for name, tool in working.items():
        found[name] = {"one": median(one[name]), "all": seconds(tool, texts)}
    return found


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        result = main(sys.argv[1], sys.argv[2:], json.load(sys.stdin))
    print(json.dumps(result))
