"""Write results: results.json for programs, results.md for people, and one PNG per figure."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from masklens import __version__
from masklens.analysis import Group
from masklens.files import whole

DPI = 120


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON; a number that is not finite is an error."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")


def write_results(out: Path, results: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write results.json, and results.md line by line."""
    write_json(out / "results.json", results)
    with whole(out / "results.md") as temporary:
        temporary.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def can_draw() -> bool:
    """Whether matplotlib is installed. If not, a later run on another machine can draw from the parts."""
    return find_spec("matplotlib") is not None


def save_figure(out: Path, name: str, figure: Any) -> None:
    """Write OUT/NAME.png, with at most 256 colours: a third of the size, and no difference to the eye."""
    from PIL import Image

    with whole(out / f"{name}.png") as temporary:
        figure.savefig(temporary, format="png", dpi=DPI)
        with Image.open(temporary) as image:
            small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(temporary, format="png", optimize=True)


def figure_lines(out: Path, names: Iterable[str]) -> list[str]:
    """The lines of results.md with the existing figures."""
    there = [name for name in names if (out / f"{name}.png").exists()]
    return [f"![{name.replace('figure', 'Figure ')}]({name}.png)" for name in there]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def command_line(name: str, **options: Any) -> str:
    """The command that repeats the run; options that were not given are left out."""
    given = {option: value for option, value in options.items() if value is not None}
    more = "".join(f" --{option.replace('_', '-')} {value}" for option, value in given.items())
    return f"python -m experiments {name}{more}"


def made_by(results: Mapping[str, Any]) -> str:
    return f"Made by `{results['command']}` at commit {', '.join(results['commits'])}."


def commits_of(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The commits at which these parts were done."""
    return sorted({part["settings"].get("commit", "unknown") for part in parts})


def one_line(settings: Mapping[str, Any]) -> str:
    """The settings of a lens in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def fits_lines(lenses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of the lenses: the cost of the fit, and the diagnostics on held-out texts."""
    heads = ["lens", "texts", "seconds", "device", "peak GB", "largest divergence", "masked, deepest site"]
    rows = [[name, *_fit_cells(lens)] for name, lens in lenses.items()]
    return ["## Fits", "", *table(heads, rows)] if rows else []


def _fit_cells(lens: Mapping[str, Any]) -> list[str]:
    return [
        str(lens["texts"]),
        f"{lens['seconds']:.0f}" + (" (resumed)" if lens.get("resumed") else ""),
        lens["settings"]["device"],
        "-" if lens["peak_bytes"] is None else f"{lens['peak_bytes'] / 1e9:.1f}",
        f"{max(d['divergence'] for d in lens['diagnostics']):.3f}",
        f"{1 - lens['diagnostics'][-1]['kept']:.1%}",
    ]


def groups_lines(title: str, kind: str, found: Mapping[str, Any]) -> list[str]:
    """For each kind of token, the mean number of layers that keep it."""
    rows = [
        [f"`{name}`", str(g["count"]), f"{g['mean']:.2f}", f"[{g['low']:.2f}, {g['high']:.2f}]"]
        for name, g in found["groups"].items()
    ]
    return [title, "", *table([kind, "tokens", "layers", "95% interval"], rows)]


def groups_of(found: Mapping[str, Any]) -> list[Group]:
    """The groups of a table that was written as plain data."""
    return [
        Group(name, g["count"], g["mean"], g["deviation"], g["low"], g["high"], tuple(g["by_site"]))
        for name, g in found["groups"].items()
    ]


def with_interval(found: Mapping[str, Any], name: str) -> str:
    """A measure and its 95% interval, for a table."""
    low, high = found[f"{name}_interval"]
    return f"{found[name]:.3f} [{low:.3f}, {high:.3f}]"


def yes_or_no(value: bool) -> str:
    return "yes" if value else "NO"


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


@cache
def commit() -> str:
    """The commit of this code, and whether the code was changed since, as of the first call. Outside of a
    repository, the version of the package."""
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)  # fails outside our repository
        changed = _git(folder, "status", "--porcelain", "--", ":/*.py")
        return _git(folder, "rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return __version__


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
