"""Run the benchmarks in turn and print each one's table."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def available() -> list[str]:
    """Names of the benchmarks beside this file, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def run(names: list[str]) -> None:
    """Print the table of every named benchmark under its name."""
    for name in names:
        print(f"## {name}\n", flush=True)
        print(import_module(f"benchmarks.bench_{name}").main(), end="\n\n", flush=True)


def main(arguments: list[str]) -> None:
    """Run the named benchmarks, or all of them when none is named."""
    known = available()
    if unknown := sorted(set(arguments) - set(known)):
        sys.exit(f"unknown benchmark {', '.join(unknown)}; there are: {', '.join(known) or 'none'}")
    run(arguments or known)


if __name__ == "__main__":
    main(sys.argv[1:])
