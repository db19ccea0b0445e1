"""Imports point one way, without cycles, also through imports inside functions.

Imports under TYPE_CHECKING are not counted: they are never run. Neither are the two tables of names that
are imported on first use, `masklens._HOME` and `masklens.methods.registry.FILES`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import masklens

PACKAGE = Path(masklens.__file__).parent

RANKS = {
    "model": 0,
    "tasks": 0,
    "methods": 1,
    "diffmask": 2,
    "evaluation": 3,
    "reports": 4,
    "corpus": 4,
    "cli": 5,
}
"""a room imports itself and rooms of a lower rank; model and tasks may import each other"""
SHARED = {"analysis", "attribution", "bootstrap", "errors", "files", "progress", "records", "words"}
"""modules beside the rooms: everyone imports them, they import one another"""
DRAWING = {
    f"reports.{name}"
    for name in ("bars", "colours", "facts", "fonts", "fragment", "heatmap", "labels", "terminal")
}
"""what draws one record: the records themselves import it when they are shown, so it imports no other room"""

ALLOWED: dict[tuple[str, str], str] = {}
"""imports against the direction that are still there, each with its reason; to be emptied"""


@dataclass(frozen=True)
class Import:
    source: str
    target: str
    in_function: bool


def modules(package: Path) -> dict[str, Path]:
    """Dotted names inside the package, "" for the package itself."""
    names = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def imports(package: Path) -> set[Import]:
    """Every import of one module of the package by another that can be run."""
    known = modules(package)
    found = set()
    for source, file in known.items():
        home = source if file.name == "__init__.py" else source.rpartition(".")[0]
        for node, in_function in _statements(ast.parse(file.read_text(encoding="utf-8"))):
            for name in _targets(node, package.name, home):
                target = _module(name, known)
                if target is not None and target != source:
                    found.add(Import(source, target, in_function))
    return found


def _statements(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """The import statements in a tree that are not under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _statements(other, in_function)
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, inside)


def _targets(node: ast.AST, package: str, home: str) -> Iterator[str]:
    """What a statement imports, as dotted names inside the package."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        above = home.split(".")[: len(home.split(".")) - node.level + 1] if home else []
        start = ".".join([package, *above, *([node.module] if node.module else [])])
        names = [f"{start}.{alias.name}" for alias in node.names]
    for name in names:
        if name.split(".")[0] == package:
            yield name.partition(".")[2]


def _module(name: str, known: dict[str, Path]) -> str | None:
    """The module that a name is, or is in."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name if name in known else "" if "" in known else None


def cycle(found: set[Import]) -> list[str] | None:
    """One cycle of imports, or None."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for one in found:
        order.add(one.source, one.target)
    try:
        order.prepare()
    except CycleError as error:
        return error.args[1]
    return None


def allowed(one: Import) -> bool:
    """Whether an import points the right way."""
    here, there = one.source.partition(".")[0], one.target.partition(".")[0]
    if one.source in DRAWING:
        return one.target in DRAWING | {"records.layers"}
    if here in SHARED and one.in_function and one.target in DRAWING:
        return True
    if here in ("", "__main__") or there in SHARED:
        return here != "" or there not in RANKS
    if here not in RANKS or there not in RANKS:
        return there == "" and here == "cli"  # the public names, which are imported on first use
    return here == there or RANKS[there] < RANKS[here] or RANKS[there] == RANKS[here] == 0


def test_there_are_no_cycles():
    assert cycle(imports(PACKAGE)) is None


def test_rooms_import_in_one_direction():
    wrong = {(one.source, one.target) for one in imports(PACKAGE) if not allowed(one)}
    assert wrong - set(ALLOWED) == set()


def test_what_is_allowed_for_now_is_still_there():
    there = {(one.source, one.target) for one in imports(PACKAGE)}
    assert set(ALLOWED) <= there, "take what is gone out of ALLOWED"


def test_every_module_is_in_a_room_or_shared():
    heads = {name.partition(".")[0] for name in modules(PACKAGE)}
    assert heads - set(RANKS) - SHARED == {"", "__main__"}


def planted(folder: Path, **files: str) -> set[Import]:
    """The imports of a small package; "__" in a name stands for a folder."""
    for name, content in {"__init__": "", **files}.items():
        file = folder / "planted" / (name if name == "__init__" else name.replace("__", "/"))
        file = file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return imports(folder / "planted")


@pytest.mark.parametrize(
    "back",
    [
        "from .a import x",
        "def f():\n    from . import a",
        "def f():\n    import planted.a",
        "from planted.a import x",
    ],
)
def test_a_planted_cycle_is_found(tmp_path, back):
    found = cycle(planted(tmp_path, a="from .b import y", b=back))
    assert found is not None and set(found) == {"a", "b"}


def test_a_longer_planted_cycle_through_a_folder_is_found(tmp_path):
    files = {
        "a": "from .room import b",
        "room__b": "from ..c import z",
        "c": "def f():\n    from .a import x",
    }
    assert set(cycle(planted(tmp_path, **files)) or ()) == {"a", "room.b", "c"}


def test_imports_for_types_alone_are_no_cycle(tmp_path):
    only_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import x"
    assert cycle(planted(tmp_path, a="from .b import y", b=only_types)) is None


@pytest.mark.parametrize(
    ("source", "target", "in_function", "right"),
    [
        ("methods.gradient", "model.batch", False, True),
        ("methods.gradient", "diffmask.lens", True, False),
        ("tasks.spans", "model.batch", False, True),
        ("reports.page", "corpus.job", False, False),
        ("reports.colours", "attribution", False, False),
        ("attribution", "reports.heatmap", True, True),
        ("attribution", "reports.heatmap", False, False),
        ("attribution", "model.batch", True, False),
        ("cli.main", "reports.serve", True, True),
        ("corpus.run", "cli.main", False, False),
    ],
)
def test_directions(source, target, in_function, right):
    assert allowed(Import(source, target, in_function)) is right
