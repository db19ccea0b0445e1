"""Words for the shell to complete, found without importing torch: a shell asks at every press of a key."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def method_names() -> list[str]:
    """The names of all methods, read from the decorators in their files."""
    here = Path(__file__)
    files = [*here.with_name("methods").glob("*.py"), *here.with_name("diffmask").glob("*.py")]
    return sorted(name for file in files for name in _registered(file.read_text(encoding="utf-8")))


def _registered(source: str) -> Iterator[str]:
    """The first argument of every `@register(...)`."""
    for node in ast.parse(source).body:
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register":
                yield ast.literal_eval(call.args[0])
