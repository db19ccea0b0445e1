"""The shortcuts experiment as results.json, results.md and one figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from masklens.records.layers import site_name

from ..parts import Found
from ..results import (
    can_draw,
    commits_of,
    figure_lines,
    made_by,
    save_figure,
    table,
    with_interval,
    write_results,
)

MARKS = {"single": ("o", "#2166ac"), "context": ("s", "#d95f02"), "order": ("^", "#1b7837")}
Runs = Mapping[tuple[str, str], Mapping[str, Any]]
"""for each data set and kind, the parts that are done"""


def write(out: Path, runs: Runs, command: str) -> None:
    """Write the results of the finished parts."""
    there = {key: parts for key, parts in runs.items() if parts}
    results: dict[str, Any] = {f"{data}/{kind}": parts for (data, kind), parts in there.items()}
    about = {"command": command, "commits": commits_of(p for parts in there.values() for p in parts.values())}
    if can_draw():
        save_figure(out, "shortcuts", drawn(there))
    lines = [*page(there, about), *figure_lines(out, ["shortcuts"])]
    write_results(out, {"runs": results, **about}, lines)


def page(runs: Runs, about: Found) -> list[str]:
    """results.md"""
    text = f"""# Planted shortcuts

{made_by(about)}

Copies of two classifiers were fine-tuned so that planted words decide the label (Bastings et al. 2022).
`single`: one of two words decides. `context`: the same words, but only if a third word is in the text.
`order`: two words are there, and the one that comes first decides. Do the methods find these words?

- precision: the share of planted tokens among the top k, for k planted tokens (1, 2 and 2); 95% interval
- depth: how many tokens one looks at, from the top, until all planted ones were seen; k at best

Every text got the shortcut to a class that is not its own, and the planted class is explained. So nothing but
the planted words speaks for it. A method with several layers is shown at the one that is best on every other
text, measured on the texts between.

## Do the copies follow the shortcut?

Accuracy on test texts, before and after. With the shortcut, the planted label is the right one; with parts of
it, or with nothing planted, the text's own.
"""
    datasets = dict.fromkeys(data for data, _ in runs)
    found = [line for data in datasets for line in _found(data, runs)]
    return [text, *_models(runs), *found, "## Every layer", "", *_layers(runs)]


def _models(runs: Runs) -> list[str]:
    heads = ["data", "shortcut", "steps", "with the shortcut", "with parts of it", "nothing planted"]
    rows = []
    for (data, kind), parts in runs.items():
        if "model" in parts:
            model = parts["model"]
            pairs = [
                f"{model['before'][n]:.3f} → {model['after'][n]:.3f}" for n in ("shortcut", "parts", "plain")
            ]
            rows.append([data, kind, str(model["steps"]), *pairs])
    return table(heads, rows)


def _found(data: str, runs: Runs) -> list[str]:
    """One table: methods down, precision and depth for each kind across, the best mean first."""
    kinds = {kind: parts for (one, kind), parts in runs.items() if one == data}
    heads = ["method", *(f"{kind}: {what}" for kind in kinds for what in ("precision", "depth"))]
    rows = [
        [f"`{name}`", *(cell for parts in kinds.values() for cell in _cells(parts.get(name)))]
        for name in methods_by_precision(kinds)
    ]
    return [f"## {data}: what the methods find", "", *table(heads, rows)]


def methods_by_precision(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The methods that are done, by their mean precision over kinds."""
    names = dict.fromkeys(name for parts in kinds.values() for name in parts if name != "model")

    def mean(name: str) -> float:
        known = [parts[name]["chosen"]["precision"] for parts in kinds.values() if name in parts]
        return sum(known) / len(known)

    return sorted(names, key=mean, reverse=True)


def _cells(part: Found | None) -> list[str]:
    if part is None:
        return ["", ""]
    one = part["chosen"]
    layer = f", {site_name(one['site'])}" if len(part["layers"]) > 1 else ""
    return [with_interval(one, "precision") + layer, f"{one['depth']:.1f}"]


def _layers(runs: Runs) -> list[str]:
    """The precision of the methods that have several layers, at each of them, over all texts."""
    rows = [
        [data, kind, f"`{name}`", _by_layer(part["layers"])]
        for (data, kind), parts in runs.items()
        for name, part in parts.items()
        if len(part.get("layers", ())) > 1
    ]
    return table(["data", "shortcut", "method", "precision"], rows)


def _by_layer(layers: list[dict[str, Any]]) -> str:
    return ", ".join(f"{site_name(one['site'])} {one['precision']:.2f}" for one in layers)


def drawn(runs: Runs) -> Any:
    """A figure with one panel per data set: methods down, precision across, a mark for each kind."""
    from matplotlib.figure import Figure

    datasets = list(dict.fromkeys(data for data, _ in runs))
    figure = Figure(figsize=(4.6 * max(1, len(datasets)), 4), layout="constrained")
    axes = figure.subplots(1, max(1, len(datasets)), squeeze=False)[0]
    for ax, data in zip(axes, datasets, strict=False):
        _panel(ax, data, {kind: parts for (one, kind), parts in runs.items() if one == data})
    if datasets:
        axes[-1].legend(frameon=False, title="shortcut", loc="center left")
    return figure


def _panel(ax: Any, data: str, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    names = methods_by_precision(kinds)[::-1]
    for kind, parts in kinds.items():
        mark, colour = MARKS[kind]
        there = [name for name in names if name in parts]
        values = [parts[name]["chosen"]["precision"] for name in there]
        ax.plot(values, [names.index(name) for name in there], mark, color=colour, alpha=0.8, label=kind)
    ax.set(title=data, xlabel="precision", xlim=(-0.03, 1.03), yticks=range(len(names)), yticklabels=names)
    ax.grid(axis="y", alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
