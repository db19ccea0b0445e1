"""What `make docs` adds to the pages in docs/: pages from elsewhere in the repository, tables and formulas.

mkdocs calls the functions whose names start with `on_`.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""files at the top of the repository that are pages of the site"""
SHOWN = (".md", ".png", ".svg", ".html")
"""the files of results/ that pages link to"""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!http)([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """List the results in the navigation."""
    results = next(entry for entry in config.nav if "Results" in entry)
    pages = sorted((ROOT / "results").glob("*/*.md"))
    for folder in dict.fromkeys(page.parent for page in pages):
        inside = [page.relative_to(ROOT).as_posix() for page in pages if page.parent == folder]
        results["Results"].append({folder.name: inside})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the top of the repository, and the results."""
    for source, page in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "results").glob("*/*")):
        if path.suffix in SHOWN:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in the tables, and make links that are right in the repository right in the site."""
    for mark, table in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(table()))
    here = page.file.src_uri
    return LINK.sub(lambda link: _moved(link, here, files), markdown)


def _moved(link: re.Match[str], page: str, files: Files) -> str:
    """A link of the repository as a link of the site; only its text where the site does not have the file."""
    picture, text, target, anchor = link.groups(default="")
    folder = posixpath.dirname(_in_repository(page))
    found = _in_site(posixpath.normpath(posixpath.join(folder, target)))
    if files.get_file_from_path(found) is None:
        return text
    return f"{picture}[{text}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{anchor})"


def _in_repository(page: str) -> str:
    sources = {name: source for source, name in TOP.items()}
    return sources.get(page) or (page if page.startswith("results/") else f"docs/{page}")


def _in_site(path: str) -> str:
    return TOP.get(path) or path.removeprefix("docs/")


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML, which browsers draw by themselves."""
    return FORMULA.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    return convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline")


def methods() -> Iterator[str]:
    """The registered methods, a row each."""
    from masklens.methods.registry import METHODS, load_all

    load_all()
    yield "| name | what it computes | cost in forward passes | needs | options | paper |"
    yield "|---|---|---|---|---|---|"
    for name, method in sorted(METHODS.items()):
        options = ", ".join(f"`{option}={value!r}`" for option, value in method.options.items())
        yield _row(f"`{name}`", method.summary, method.cost, method.needs, options, method.paper)


def commands() -> Iterator[str]:
    """The commands, each with a table of its options."""
    import typer

    from masklens.cli.main import app

    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        about, _, examples = (command.help or "").partition("[bold]Examples[/bold]")
        yield from (
            f"## masklens {name}",
            "",
            about.strip(),
            "",
            "```sh",
            dedent(examples.strip("\n")),
            "```",
            "",
        )
        yield from ("| option | meaning |", "|---|---|")
        yield from (_row(_flags(p), p.help or "") for p in command.params if p.name != "help")
        yield ""


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


TABLES = {"<!-- table of methods -->": methods, "<!-- commands -->": commands}
