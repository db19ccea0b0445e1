"""Write docs/api.md from the docstrings, the registry of methods and the command line.

    python docs/make_api.py

A test compares the file with what this script makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).with_name("api.md")
FUNCTIONS = (
    "explain", "verify", "evaluate", "report", "save", "load", "windows", "methods", "register_family",
)  # fmt: skip
CLASSES = {
    "Subject": "subject",
    "Attribution": "attribution",
    "DiffMask": "diffmask.lens",
}
RESULTS = {
    "Verification": "evaluation.verifying",
    "Diagnostic": "diffmask.trainer",
    "Table": "evaluation.table",
    "Cell": "evaluation.table",
    "GroupTable": "analysis",
    "Group": "analysis",
}
PLUMBING = {"count", "index"}
"""methods that named tuples bring along"""


def page() -> str:
    """The whole of docs/api.md."""
    parts = [
        "# API reference",
        "Made from the docstrings by `python docs/make_api.py`; do not edit. Everything here is under "
        "`import masklens as ml`, unless a module is named.",
        "## Functions",
        *(function(f"ml.{name}", public(name)) for name in FUNCTIONS),
        "## Classes",
        *(whole_class(f"ml.{name}", home(name, place)) for name, place in CLASSES.items()),
        "## `ml.analysis`: tables of tokens",
        *analysis(),
        "## Results",
        *(whole_class(f"masklens.{place}.{name}", home(name, place)) for name, place in RESULTS.items()),
        "## Settings of a fit",
        "`DiffMask.fit(..., NAME=VALUE)` takes any of these (`masklens.diffmask.trainer.Settings`).",
        field_table(home("Settings", "diffmask.trainer")),
        "## Methods",
        method_table(),
        "## Errors",
        "All are in `masklens.errors`; the command line says them in one line and ends with exit code 2.",
        error_list(),
        "## Command line",
        *commands(),
    ]
    return "\n\n".join(parts) + "\n"


def public(name: str) -> Any:
    return getattr(import_module("masklens"), name)


def home(name: str, module: str) -> Any:
    return getattr(import_module(f"masklens.{module}"), name)


def analysis() -> Iterator[str]:
    for name in ("by_part_of_speech", "by_label", "by_layer"):
        yield function(f"ml.analysis.{name}", home(name, "analysis"))


def function(name: str, what: Any) -> str:
    """A heading with the signature, and the docstring."""
    if isinstance(what, ModuleType):  # ml.methods, a package that can be called
        return f"### `{name}()`\n\nThe names of the registered methods."
    return f"### `{name}{signature(what)}`\n\n{described(what)}"


def signature(what: Any) -> str:
    """Names and defaults, without types."""
    taken = [p for p in inspect.signature(what).parameters.values() if p.name not in ("self", "cls")]
    return f"({', '.join(parameter(p) for p in taken)})"


def parameter(one: inspect.Parameter) -> str:
    """`name=default`; a function that is a default is shown by its name."""
    if inspect.isfunction(one.default):
        return f"{one.name}={one.default.__name__}"
    return str(one.replace(annotation=one.empty))


def described(what: Any) -> str:
    """A docstring as Markdown: its arguments become a list, its indented lines an example."""
    text = inspect.getdoc(what) or ""
    before, _, arguments = text.partition("\nArgs:\n")
    listed, _, after = arguments.partition("\n\n")
    parts = [examples(before), argument_list(listed), examples(after)]
    return "\n\n".join(part for part in parts if part)


def examples(text: str) -> str:
    """Indented blocks become fenced ones."""
    return re.sub(
        r"(?:^ {4}.*\n?)+",
        lambda found: f"```text\n{textwrap.dedent(found[0]).rstrip()}\n```\n",
        text.strip("\n"),
        flags=re.MULTILINE,
    ).strip()


def argument_list(text: str) -> str:
    """`name: what it is` lines, which may go on with more indent."""
    joined = re.sub(r"\n {5,}", " ", text.strip("\n"))
    return re.sub(r"^ {4}(\w+): ", r"- `\1`: ", joined, flags=re.MULTILINE).strip()


def whole_class(name: str, kind: type) -> str:
    """The docstring, the fields of a record, and the public methods."""
    parts = [f"### `{name}`", described(kind)]
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        parts.append(field_table(kind))
    elif "__init__" in vars(kind):
        parts.append(f"Made by `{kind.__name__}{signature(kind.__init__)}`.")
    parts += [member(name, value) for name, value in vars(kind).items() if is_shown(name, value)]
    return "\n\n".join(part for part in parts if part)


def is_shown(name: str, value: Any) -> bool:
    inner = value.__func__ if isinstance(value, classmethod) else value
    told = inspect.isfunction(inner) or isinstance(value, property)
    return told and not name.startswith("_") and name not in PLUMBING and bool(inner.__doc__)


def member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"**`.{name}`** {described(value)}"
    inner = value.__func__ if isinstance(value, classmethod) else value
    return f"**`.{name}{signature(inner)}`** {described(inner)}"


def field_table(kind: Any) -> str:
    """The fields of a record, their defaults, and the strings below them."""
    said, defaults = field_notes(kind), field_defaults(kind)
    lines = ["| field | default | |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {cell(defaults.get(name, ''))} | {cell(said.get(name, ''))} |" for name in names(kind)
    ]
    return "\n".join(lines)


def names(kind: Any) -> Sequence[str]:
    return kind._fields if hasattr(kind, "_fields") else [f.name for f in fields(kind)]


def field_defaults(kind: Any) -> dict[str, str]:
    if hasattr(kind, "_fields"):
        return {name: f"`{value!r}`" for name, value in kind._field_defaults.items()}
    return {f.name: f"`{f.default!r}`" for f in fields(kind) if f.default is not MISSING}


def field_notes(kind: type) -> dict[str, str]:
    """The string that stands below a field in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    notes = {}
    for here, after in zip(body, body[1:], strict=False):
        is_note = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(here, ast.AnnAssign) and is_note:
            notes[here.target.id] = after.value.value  # type: ignore[union-attr]
    return notes


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def method_table() -> str:
    from masklens.methods import METHODS, load_all

    load_all()
    lines = ["| name | what it computes | cost in forward passes | needs | options | paper |"]
    lines.append("|---|---|---|---|---|---|")
    for _, method in sorted(METHODS.items()):  # the order of registration depends on what was imported first
        options = ", ".join(f"`{name}={value!r}`" for name, value in method.options.items())
        shown = (method.summary, method.cost, method.needs, options, method.paper)
        lines.append(f"| `{method.name}` | {' | '.join(cell(text) for text in shown)} |")
    return "\n".join(lines)


def error_list() -> str:
    from masklens import errors

    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    return "\n".join(f"- `{kind.__name__}`: {inspect.getdoc(kind)}" for kind in kinds)


def commands() -> Iterator[str]:
    """Every command with its options."""
    import typer

    from masklens.cli import app

    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        lines = [f"### `masklens {name}`", "", cell(command.help or ""), "", "| option | |", "|---|---|"]
        lines += [f"| {option_name(p)} | {cell(p.help or '')} |" for p in command.params if p.name != "help"]
        yield "\n".join(lines)


def option_name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
