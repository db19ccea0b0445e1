"""What every command shares: how it is registered, how errors are reported, how help is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import MasklensError
from .console import tell
from .wording import in_options


def without_types(parameters: Sequence[Any]) -> list[Any]:
    """The parameters, without the names of Python types in their help."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
        elif one.param_type_name == "argument":
            one.display_type_rich = lambda ctx: ""
    return list(parameters)


class Command(TyperCommand):
    """A command whose help is written for the command line."""

    def get_params(self, ctx: Any) -> Any:
        return without_types(super().get_params(ctx))


class Commands(TyperGroup):
    """The group of all commands. It reports a user's mistake in one line, with exit code 2."""

    def get_params(self, ctx: Any) -> Any:
        return without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MasklensError as error:
            tell(f"masklens: {in_options(' '.join(str(error).split()))}")
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Show how a decision emerges across the layers of a neural text model.",
)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a function as the command of its name."""
    return app.command(cls=Command)(function)
