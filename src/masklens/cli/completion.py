"""Completion of method names in the shell. It must be fast, so it does not import torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def method_names() -> list[str]:
    """The names of all methods, read from the calls that register them."""
    package = Path(__file__).parents[1]
    files = [*package.glob("methods/*.py"), *package.glob("diffmask/*.py")]
    return sorted(name for file in files for name in _registered(file.read_text(encoding="utf-8")))


def _registered(source: str) -> Iterator[str]:
    """The first argument of every `register(...)` and `preset(...)`, where it is a name."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in (call for call in calls if getattr(call.func, "id", "") in ("register", "preset")):
        if isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value)


def complete_method(incomplete: str) -> list[str]:
    """The methods whose names begin as given, for the shell."""
    return [name for name in method_names() if name.startswith(incomplete)]
