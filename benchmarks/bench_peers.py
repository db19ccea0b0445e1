"""The same task in other tools: one sentiment sentence and 20 of them, explained (docs/comparison.md).

MASKLENS_PEERS names the Python of an environment that has the tools (several, with the system's separator
between them, where tools exclude each other). The code that is timed, and whose lines are counted, is in
peers/. What a tool takes is set beside what masklens takes for the same kind of method in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.reference import Missing, checkpoint, sst2_dev

FOLDER = Path(__file__).parent / "peers"
OURS = {"integrated_gradients": "masklens_integrated_gradients", "partition": "masklens_shapley"}
"""what stands for the same kind of method here, by the end of a file's name"""
TEXTS = 20


def main() -> str:
    """A row a tool: lines of code, seconds, and how many times as long as masklens."""
    pythons = [p for p in os.environ.get("MASKLENS_PEERS", "").split(os.pathsep) if p]
    if not pythons:
        return "not run: set MASKLENS_PEERS to the Python of an environment with captum, shap and the others"
    try:
        folder, texts = checkpoint("minilm-sst2"), sst2_dev()[0][:TEXTS]
    except Missing as reason:
        return f"not run: {reason}"
    lines = [
        f"| tool | lines of code | one sentence (s) | {TEXTS} (s) | times ours, one | times ours, {TEXTS} |",
        "|---|---|---|---|---|---|",
    ]
    for python in pythons:
        found = measure(python, folder, texts)
        lines += [row(name, found) for name in found if "masklens" not in name or found_alike(name, found)]
    return "\n".join(lines)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*_*.py"))


def measure(python: str, folder: Path, texts: list[str]) -> dict[str, dict[str, Any]]:
    """What peers/measure.py found in one environment; tools that are not there are left out."""
    ours = Path(__file__).parents[1] / "src"
    done = subprocess.run(
        [python, str(FOLDER / "measure.py"), str(folder), *names()],
        input=json.dumps(texts),
        env=os.environ | {"PYTHONPATH": str(ours), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {name: one for name, one in found.items() if "ModuleNotFoundError" not in one.get("error", "")}


def found_alike(name: str, found: dict[str, Any]) -> bool:
    """Whether an environment has a tool to compare this method of ours with."""
    ends = [end for end, ours in OURS.items() if ours == name]
    return any(other.endswith(end) and other not in OURS.values() for other in found for end in ends)


def row(name: str, found: dict[str, dict[str, Any]]) -> str:
    one = found[name]
    shown = f"| {name} | {code_lines(FOLDER / f'{name}.py')} |"
    if "error" in one:
        return f"{shown} {one['error'].replace('|', ' ')} | | | |"
    end = next(end for end, ours in OURS.items() if name.endswith(end) or name == ours)
    ours = found[OURS[end]]
    ratios = f"{one['one'] / ours['one']:.1f} | {one['all'] / ours['all']:.1f}"
    return f"{shown} {one['one']:.2f} | {one['all']:.2f} | {ratios} |"


def code_lines(path: Path) -> int:
    """Lines of a file without docstring, blank lines and the two functions that wrap what a user writes."""
    code = path.read_text(encoding="utf-8").split('"""', 2)[2]
    wrapping = ("def ready(", "def explain(", "return explain")
    return sum(bool(line.strip()) and not line.strip().startswith(wrapping) for line in code.splitlines())
