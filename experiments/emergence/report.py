"""The emergence experiment as results.json, results.md and one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..parts import Found, Parts
from ..results import can_draw, commits_of, figure_lines, made_by, one_line, save_figure, table, write_results

LOOKS = {"truth": ("black", "-"), "default": ("#2166ac", "-"), "published": ("#d95f02", "--")}


def write(out: Path, parts: Parts, about: Found, command: str) -> None:
    """Write the results of the finished parts."""
    names = sorted(path.stem for path in parts.folder.glob("*.json") if not path.stem.startswith("alone-"))
    found = parts.done(names)
    results = {"runs": {name: _run(part, parts, name) for name, part in found.items()}, **about}
    seeds = sorted({int(name.rpartition("-")[2]) for name in found})
    results["command"] = command + "".join(f" --seed {seed}" for seed in seeds)
    results["commits"] = commits_of(found.values())
    if can_draw():
        save_figure(out, "emergence", drawn(results["runs"]))
    write_results(out, results, [*page(results), *figure_lines(out, ["emergence"])])


def _run(part: Found, parts: Parts, name: str) -> dict[str, Any]:
    """The results for one planted model, with those of lenses for single sites if there are some."""
    forms = dict(part["forms"])
    for alone in parts.done([f"alone/{name}"]).values():
        forms |= alone["forms"]
    distances = {form: distance(rows, forms["truth"]) for form, rows in forms.items() if form != "truth"}
    return {"accuracy": part["accuracy"], "seconds": part["seconds"], "forms": forms, "distance": distances}


def distance(rows: Sequence[Found], truth: Sequence[Found]) -> float:
    """The mean over sites of the absolute difference between the recalls."""
    return sum(abs(a["recall"] - b["recall"]) for a, b in zip(rows, truth, strict=True)) / len(rows)


def page(results: Found) -> list[str]:
    """results.md"""
    margin = results["settings"]["margin"]
    text = f"""# Planted emergence

{made_by(results)}

Small transformers whose relevant words are known, read by lenses over inputs (margin {margin} nats). A word
may be dropped at a layer only where that layer knows that it is irrelevant: at the words (lexical), after
attention (count), after two attention steps (two_hops), or half and half (mixed). `truth` is a probe that was
told which words are relevant. All figures are of {results["held_out"]} texts that nothing was learned from.

- recall: share of the irrelevant words that are dropped, site by site (0 = words, then the input of the first
  block and the output of each)
- distance: mean over sites of the distance to the truth's recall
- false: the largest share of relevant words that is dropped at a site
- over: sites whose divergence is over the margin
"""
    heads = ["model", "form", "recall", "distance", "false", "over"]
    rows = [
        [name, form, *_cells(sites, run["distance"].get(form), margin)]
        for name, run in results["runs"].items()
        for form, sites in run["forms"].items()
    ]
    return [text, *table(heads, rows), f"The lenses: {one_line(results['settings'])}.", ""]


def _cells(sites: Sequence[Found], off: float | None, margin: float) -> list[str]:
    return [
        " ".join(f"{site['recall']:.2f}" for site in sites),
        "" if off is None else f"{off:.2f}",
        f"{max(site['false'] for site in sites):.1%}",
        str(sum(site["divergence"] > margin for site in sites)),
    ]


def drawn(runs: Mapping[str, Found]) -> Any:
    """A figure with one panel per task: the recall of the truth and of the lenses, over sites."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(_task(name) for name in runs))
    figure = Figure(figsize=(3.2 * len(tasks), 3.2), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for ax, task in zip(axes, tasks, strict=True):
        _panel(ax, task, [run for name, run in runs.items() if _task(name) == task])
    handles, labels = axes[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes[0].legend(named.values(), named.keys(), frameon=False)
    axes[0].set_ylabel("irrelevant words dropped")
    return figure


def _task(name: str) -> str:
    return name.rpartition("-")[0]


def _panel(ax: Any, task: str, runs: Sequence[Found]) -> None:
    for run in runs:
        for form, (colour, line) in LOOKS.items():
            recalls = [site["recall"] for site in run["forms"][form]]
            ax.plot(recalls, line, color=colour, alpha=0.8, marker=".", label=form)
    ax.set(title=task.replace("_", " "), xlabel="site")
    ax.spines[["top", "right"]].set_visible(False)
