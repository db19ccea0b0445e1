"""The lenses experiment as results.json, results.md and one figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model_run import OVERS
from ..parts import Found
from ..results import can_draw, commits_of, figure_lines, made_by, one_line, save_figure, table, write_results

COLOURS = {"sst2": "#2166ac", "sst5": "#d95f02", "agnews": "#1b9e77"}


def write(out: Path, models: Mapping[str, Mapping[str, Found]], margin: float, command: str) -> None:
    """Write the results of the finished parts: models by name, each with its parts by name."""
    every = [part for parts in models.values() for part in parts.values()]
    results = {
        "command": command,
        "commits": commits_of(every),
        "margin": margin,
        "summary": summary(models, margin),
        "models": models,
    }
    if can_draw():
        save_figure(out, "knowledge", drawn(models))
    write_results(out, results, [*page(results), *figure_lines(out, ["knowledge"])])


def fits(models: Mapping[str, Mapping[str, Found]]) -> Iterator[tuple[str, str, Found]]:
    """Every lens for all sites: its model, what it is over with its number, and its part."""
    for model, parts in models.items():
        for name, part in parts.items():
            if name.startswith("lens/"):
                yield model, name.removeprefix("lens/"), part


def summary(models: Mapping[str, Mapping[str, Found]], margin: float) -> dict[str, Any]:
    """How many sites are within the margin, and how far over it the worst one is."""
    divergences = [site["divergence"] for _, _, part in fits(models) for site in part["diagnostics"]]
    return {
        "sites": len(divergences),
        "within": sum(one <= margin for one in divergences),
        "largest": max(divergences, default=0.0) / margin,
    }


def page(results: Found) -> list[str]:
    """results.md"""
    models, count = results["models"], results["summary"]
    lens = next((part["lens"] for _, _, part in fits(models)), {})
    text = f"""# Lenses by the defaults

{made_by(results)}

Lenses for all sites of classifiers, fitted with the defaults. All figures are of test texts that no lens was
fitted or calibrated on, with hard masks (kept where P(kept) > 0.5). Sites are given in order: the words, the
input of the first block, the output of each block.

**{count["within"]} of {count["sites"]} sites are within the margin of {results["margin"]} nats.** The worst
one has {count["largest"]:.2f} times the margin.

- masked: the share of the tokens that can go, site by site
- largest: the largest divergence of a site, as a multiple of the margin
- over: sites over the margin
- kept: the share of texts with the same prediction, at the worst site
"""
    heads = ["model", "lens", "masked", "largest", "over", "kept", "seconds", "device"]
    rows = [
        [model, name.replace("/", ", "), *_cells(part, results["margin"])]
        for model, name, part in fits(models)
    ]
    lines = [text, *table(heads, rows), *_seeds_lines(models), *_alone_lines(models)]
    return [*lines, f"The lenses: {one_line(lens)}.", ""]


def _cells(part: Found, margin: float) -> list[str]:
    sites = part["diagnostics"]
    return [
        masked(sites),
        f"{max(site['divergence'] for site in sites) / margin:.2f}",
        str(sum(site["divergence"] > margin for site in sites)),
        f"{min(site['agreement'] for site in sites):.2f}",
        f"{part['seconds']:.0f}" + (" (resumed)" if part["resumed"] else ""),
        part["settings"]["device"],
    ]


def masked(sites: Sequence[Found]) -> str:
    return numbers([1 - site["kept"] for site in sites])


def numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _seeds_lines(models: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """The lines about the difference between two seeds."""
    rows = [
        [model, over, numbers(parts[f"seeds/{over}"]["difference"])]
        for model, parts in models.items()
        for over in OVERS
        if f"seeds/{over}" in parts
    ]
    text = "The mean absolute difference between the keep probabilities of two seeds, site by site."
    return ["## Two seeds", "", text, "", *table(["model", "over", "difference"], rows)] if rows else []


def _alone_lines(models: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """The lines about lenses for single sites: what they mask, and the share of it that the lens for all
    sites masks."""
    rows = []
    for model, parts in models.items():
        alone = {name: part["diagnostics"][0] for name, part in parts.items() if name.startswith("alone/")}
        if alone and "lens/inputs/0" in parts:
            rows.append([model, *_against(parts["lens/inputs/0"]["diagnostics"], list(alone.values()))])
    text = "A lens over inputs for one site alone has the same number of steps, all for that site."
    heads = ["model", "sites", "masked alone", "masked by the lens for all, as a share of that"]
    return ["## Sites alone", "", text, "", *table(heads, rows)] if rows else []


def _against(sites: Sequence[Found], alone: Sequence[Found]) -> list[str]:
    shares = {site["site"]: 1 - site["kept"] for site in sites}
    numbered = [one["site"] for one in alone]
    ratios = [shares[one["site"]] / max(1e-9, 1 - one["kept"]) for one in alone]
    return [" ".join(map(str, numbered)), masked(alone), numbers(ratios)]


def drawn(models: Mapping[str, Mapping[str, Found]]) -> Any:
    """The knowledge curves: the share of the tokens that can go at each site. One panel a kind of lens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, len(OVERS), sharey=True)
    for ax, over in zip(axes, OVERS, strict=True):
        for model, name, part in fits(models):
            if name.startswith(over):
                _curve(ax, model, name, part["diagnostics"])
        ax.set(title=f"over {over}", xlabel="site", ylim=(0, 1))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of the tokens that can go")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _curve(ax: Any, model: str, name: str, sites: Sequence[Found]) -> None:
    """A model's curve; that of a second seed has no entry in the legend."""
    family, _, task = model.partition("-")
    label = model if name.endswith("/0") else None
    line = "-" if family == "minilm" else "--"
    ax.plot([1 - site["kept"] for site in sites], line, color=COLOURS.get(task), marker=".", label=label)
