"""`masklens methods`: list the methods, or describe one with its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .completion import complete_method
from .console import print_json, working
from .wording import in_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..methods.registry import Method

FIELDS = ("name", "summary", "cost", "needs", "paper")
KINDS = {
    "a fitted lens": "Learned masks",
    "time": "Learned masks",
    "gradients": "Gradients",
    "attention weights": "Attention",
    "forward passes": "Tokens taken away",
    "nothing": "For comparison",
}
"""the heading under which a method is listed, by the first thing it needs"""
MEANINGS = {
    "absolute": "take absolute values",
    "baselines": "what stands for a missing token: zero, pad, mask or the id of a token",
    "internal_batch_size": "copies of texts that go through the model at once",
    "lr": "the learning rate",
    "margin": "nats by which the output may move",
    "n_samples": "random samples",
    "n_steps": "steps",
    "noise": "the size of the noise",
    "norm": "l2, l1 or sum (signed)",
    "steps": "steps of learning for a text",
    "window": "tokens that are taken away together",
}
"""what common options mean, for methods whose docstrings do not say it"""


def methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One method to describe.", autocompletion=complete_method),
    ] = None,
    every: Annotated[
        bool, options.of_output("--all", options.FLAG, "Also list the methods with other tools' settings.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the methods by kind and cost, or describe one with its options.

    [bold]Examples[/bold]

      masklens methods
      masklens methods integrated_gradients
    """
    with working():
        from ..methods.registry import METHODS, find, load_all

        load_all()
        one = find(name) if name else None
    if one is not None:
        describe(one, as_json)
    elif as_json:
        print_json([fields(METHODS[name]) for name in sorted(METHODS)])
    else:
        listed = [method for method in METHODS.values() if every or not method.is_preset]
        show_kinds(listed, hidden=len(METHODS) - len(listed))


def fields(method: Method) -> dict[str, str]:
    return {name: getattr(method, name) for name in FIELDS}


def show_kinds(methods: Iterable[Method], hidden: int) -> None:
    """Print the methods of each kind, the cheapest first."""
    from rich.console import Console
    from rich.markup import escape

    kinds: dict[str, list[Method]] = {title: [] for title in [*KINDS.values(), "Others"]}
    for method in sorted(methods, key=lambda method: method.passes):
        kinds[kind(method)].append(method)
    width = max(len(method.name) for some in kinds.values() for method in some)
    console = Console(highlight=False)
    for title, some in kinds.items():
        if some:
            console.print(f"[bold]{title}[/bold]")
            rows = ((method.name, default_cost(method), method.summary) for method in some)
            console.print(grid(rows, widths=(width, 19)))
    console.print("After the name: the cost of a text, in forward passes of the model.")
    if hidden:
        console.print(f"{hidden} more are other tools' settings of these: masklens methods --all")
    console.print(escape("The options of a method: masklens methods NAME"))


def kind(method: Method) -> str:
    return next((title for needs, title in KINDS.items() if method.needs.startswith(needs)), "Others")


def default_cost(method: Method) -> str:
    """The cost. If it depends on the options alone, its value for the default options is added."""
    first = re.split("[,;:]", method.cost)[0]
    numbers = {name for name, default in method.options.items() if isinstance(default, int)}
    depends = numbers & set(first.split())
    return f"{method.passes:,.0f} ({method.cost})" if depends and "token" not in first else method.cost


def describe(method: Method, as_json: bool) -> None:
    """Print what a method computes, costs and needs, and its options with their defaults."""
    about, meanings = documentation(inspect.getdoc(method.function) or "")
    defaults = method.options | ({"baselines": method.baseline} if method.baseline else {})
    if as_json:
        print_json(fields(method) | {"options": defaults, "meanings": meanings})
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"[bold]{method.name}[/bold]  {escape(method.summary)}\n")
    console.print(escape(about) + "\n")
    facts = (
        ("cost", f"{method.cost} (in forward passes)"),
        ("needs", in_options(method.needs)),
        ("paper", method.paper),
    )
    console.print(grid(facts, widths=(5,)))
    if defaults:
        console.print("[bold]Options[/bold]  --option NAME=VALUE")
        console.print(grid(option_rows(defaults, meanings), widths=(19, 13)))


def option_rows(defaults: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    """Name, default and meaning of each option. An option of the command line has its name there."""
    flags = {"lens": "--lens", "lm_head": "--lm-head"}
    for name, default in defaults.items():
        shown = "none" if default is None else str(default)
        yield flags.get(name, name), shown, meanings.get(name, MEANINGS.get(name, ""))


def documentation(text: str) -> tuple[str, dict[str, str]]:
    """A docstring split in two: the description, and the meaning of each argument."""
    before, _, rest = text.partition("\nArgs:\n")
    arguments, after = re.match(r"((?:[ \t]+.*\n?|\n(?=[ \t]))*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    meanings = {}
    for names, meaning in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE):
        for name in names.split(", "):
            meanings[name] = " ".join(meaning.split())
    paragraphs = [" ".join(one.split()) for one in f"{before}\n\n{after}".split("\n\n")]
    return "\n\n".join(filter(None, paragraphs)), meanings


def grid(rows: Iterable[tuple[str, ...]], widths: tuple[int, ...]) -> RenderableType:
    """Columns of the given widths, which are never cut; the last takes the rest of the line."""
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for i, width in enumerate(widths):
        table.add_column(width=width, no_wrap=i == 0, style="cyan" if i == 0 else None)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*map(escape, row))
    return Padding(table, (0, 0, 1, 2))
