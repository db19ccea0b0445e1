"""The results of saliency.py as results.json, results.md, a page of examples and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MethodError
from ..evaluation.faithfulness import STEPS
from ..evaluation.specificity import word_cloud
from ..files import whole
from .highlights import document

Row = Mapping[str, Any]
Parts = Mapping[str, Mapping[str, Any]]

TITLES = {"sst2": "SST-2", "agnews": "AG News"}
NAMES = {
    "gradcam@1": "Grad-CAM l0",
    "allennlp_simple": "Simple",
    "allennlp_smooth": "Smooth",
    "allennlp_integrated": "Integrated (AllenNLP)",
    "thermostat_grad_x_activation": "GradxAct",
    "thermostat_integrated": "Integrated (Thermostat)",
    "thermostat_lime": "LIME",
    "thermostat_occlusion": "Occlusion",
    "thermostat_shapley": "Shapley",
    "thermostat_deeplift_shap": "DeepLiftShap",
    "thermostat_gradient_shap": "GradientShap",
    "diffmask": "DiffMask",
    "random": "Random",
}
PAPER = {
    "sst2": {
        "gradcam@1": (0.797, 0.713),
        "decoded_gradcam@6": (0.832, 0.640),
        "decoded_gradcam@7": (0.854, 0.617),
        "decoded_gradcam@8": (0.867, 0.609),
        "decoded_gradcam@9": (0.836, 0.660),
        "allennlp_simple": (0.799, 0.756),
        "allennlp_smooth": (0.795, 0.750),
        "allennlp_integrated": (0.804, 0.762),
        "random": (0.748, 0.756),
    },
    "agnews": {
        "gradcam@1": (0.853, 0.804),
        "decoded_gradcam@7": (0.895, 0.739),
        "decoded_gradcam@9": (0.867, 0.782),
        "decoded_gradcam@10": (0.879, 0.774),
        "thermostat_shapley": (0.905, 0.567),
        "thermostat_occlusion": (0.894, 0.731),
        "thermostat_integrated": (0.897, 0.661),
        "thermostat_gradient_shap": (0.860, 0.784),
        "thermostat_lime": (0.851, 0.792),
        "thermostat_grad_x_activation": (0.851, 0.794),
        "thermostat_deeplift_shap": (0.823, 0.842),
        "random": (0.829, 0.841),
    },
}
"""the paper's areas, revealing and hiding (RoBERTa; its layer l is our site l + 1)"""


def write(out: Path, family: str, found: Mapping[str, Parts], command: str) -> None:
    """Write everything that can be said from the parts that are there."""
    results = gathered(family, found, command)
    _write(out / "results.json", json.dumps(results, indent=1))
    _write(out / "results.md", "\n".join(summary(family, found, results, command)))
    _write(out / f"{family}-examples.html", document("Highlighted examples", _examples(found)))
    draw(out, found)


def _write(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def rows_of(parts: Parts) -> dict[str, Row]:
    """Every row by name."""
    return {row["name"]: row for part in parts.values() for row in part.get("rows", [])}


def chosen_row(parts: Parts) -> str | None:
    """The decoded layer that was chosen on training texts."""
    return f"decoded_gradcam@{parts['choice']['chosen']['site']}" if "choice" in parts else None


def gathered(family: str, found: Mapping[str, Parts], command: str) -> dict[str, Any]:
    """The results file: {data set: {family: {row: areas}}}, "overlap", "chosen" and how they were made."""
    results: dict[str, Any] = {}
    for dataset, parts in found.items():
        kept = ("name", "site", "overlap", "top_words", "shared_words", "diagnostics")
        rows = {
            name: {key: value for key, value in row.items() if key not in kept}
            for name, row in rows_of(parts).items()
        }
        results[dataset] = {family: rows}
    results["overlap"] = {
        dataset: {name: row["overlap"] for name, row in rows_of(parts).items() if "overlap" in row}
        for dataset, parts in found.items()
    }
    results["chosen"] = {
        dataset: {**parts["choice"]["chosen"], "row": chosen_row(parts), "texts": parts["choice"]["texts"]}
        for dataset, parts in found.items()
        if "choice" in parts
    }
    commits = sorted({part.get("commit", "unknown") for parts in found.values() for part in parts.values()})
    results["settings"] = {"family": family, "command": command, "commits": commits, "shares": list(STEPS)}
    return results


def label(name: str) -> str:
    """A row's name as the paper has it; the output of block l is site l + 1."""
    if name.startswith("decoded_gradcam@"):
        return f"Decoded Grad-CAM l{int(name.split('@')[1]) - 1}"
    return NAMES.get(name, name)


def summary(family: str, found: Mapping[str, Parts], results: Mapping[str, Any], command: str) -> list[str]:
    """results.md, line by line."""
    commits = ", ".join(results["settings"]["commits"])
    lines = [f"# Decoded Grad-CAM on {family}", "", f"Made with `{command}` at commit {commits}.", ""]
    lines += [
        "Areas under the accuracy curve, against gold labels, most important tokens first: revealing "
        "(higher is better) and hiding (lower is better). Intervals: 95% bootstrap over texts. The paper's "
        "figures are for RoBERTa and stand beside ours, not in place of them. Layer l is site l + 1.",
        "",
    ]
    for number, (dataset, parts) in enumerate(found.items(), start=1):
        lines += [f"## Table {number}: {TITLES[dataset]}", "", *_areas(dataset, parts), ""]
        lines += [*_choice(parts), *_overlap(dataset, parts), *_shared(parts), *_example_lines(parts)]
    return lines


def _areas(dataset: str, parts: Parts) -> list[str]:
    rows, chosen = rows_of(parts), chosen_row(parts)
    devices = sorted({row["device"] for row in rows.values() if "device" in row})
    lines = [
        f"| explainer | revealing | hiding | paper | seconds ({', '.join(devices)}) | texts |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        paper = PAPER[dataset].get(name)
        cells = [
            label(name) + (" **(chosen)**" if name == chosen else ""),
            *(_area(row, game) for game in ("revealing", "hiding")),
            "" if paper is None else f"{paper[0]:.3f} / {paper[1]:.3f}",
            f"{row['seconds']:.1f}" if row["seconds"] else "",
            str(row["texts"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _area(row: Row, game: str) -> str:
    low, high = row[f"{game}_interval"]
    spread = row.get(f"{game}_spread")
    return f"{row[game]:.3f} [{low:.3f}, {high:.3f}]" + (f" ±{spread:.3f}" if spread is not None else "")


def _choice(parts: Parts) -> list[str]:
    if "choice" not in parts:
        return []
    chosen, texts = parts["choice"]["chosen"], parts["choice"]["texts"]
    tau = "all tokens" if chosen["tau"] is None else f"tau = {chosen['tau']}"
    return [
        f"Layer l{chosen['site'] - 1} and {tau} were chosen on {texts} training texts (largest revealing "
        "minus hiding area). The seconds of the chosen layer are for that layer alone, those of the other "
        "layers for one pass over all of them.",
        "",
    ]


def _overlap(dataset: str, parts: Parts) -> list[str]:
    rows = _with_overlap(parts)
    if not rows:
        return []
    counts = ["10", "20", "50", "100"]
    lines = ["Share of top k words that two classes have in common (Figure 4):", ""]
    lines += [
        f"| explainer | {' | '.join(f'k = {k}' for k in counts)} |",
        f"|---|{'---|' * len(counts)}",
    ]
    for name, row in rows.items():
        shares = [f"{row['overlap'][k]:.3f}" for k in counts]
        lines.append(f"| {label(name)} | {' | '.join(shares)} |")
    return [*lines, ""]


def _with_overlap(parts: Parts) -> dict[str, Row]:
    """Rows whose classes can be compared: the model predicted more than one."""
    return {
        n: row for n, row in rows_of(parts).items() if "overlap" in row and row["overlap"]["50"] is not None
    }


def _shared(parts: Parts) -> list[str]:
    """The paper's Tables 3 to 9: words in the top 50 of both classes, for each pair."""
    rows, chosen = rows_of(parts), chosen_row(parts)
    shown = [n for n in rows if "shared_words" in rows[n] and (not n.startswith("decoded") or n == chosen)]
    pairs = [(a, b) for a, b, _ in rows[shown[0]]["shared_words"]] if shown else []
    lines = []
    for i, (a, b) in enumerate(pairs):
        lines += [f"Words in the top 50 of both {a} and {b}:", "", "| explainer | words |", "|---|---|"]
        words = {name: rows[name]["shared_words"] for name in shown}
        for name, some in words.items():
            common = some[i][2] if i < len(some) else []
            lines.append(f"| {label(name)} | {', '.join(common) or '(none)'} |")
        lines.append("")
    return lines


def _example_lines(parts: Parts) -> list[str]:
    found = [(part, one) for part, values in parts.items() for one in values.get("examples", [])]
    if not found:
        return []
    lines = ["Appendix A.5 (highlighted in the page of examples):", ""]
    seen: dict[str, str] = {one["text"]: f"{one['prediction']}: {one['probability']:.4f}" for _, one in found}
    return [*lines, *(f"- {text} — {prediction}" for text, prediction in seen.items()), ""]


def _examples(found: Mapping[str, Parts]) -> str:
    """Appendix A.5: each text with the highlights of each method."""
    pieces = []
    for dataset, parts in found.items():
        pieces.append(f"<h2>{TITLES[dataset]}</h2>")
        examples = [(part, one) for part, values in parts.items() for one in values.get("examples", [])]
        for text in dict.fromkeys(one["text"] for _, one in examples):
            for part, one in examples:
                if one["text"] == text:
                    name = chosen_row(parts) if part == "decoded_gradcam" else part
                    pieces.append(_example(label(name or part), one))
            pieces.append("<hr>")
    return "\n".join(pieces)


def _example(name: str, one: Mapping[str, Any]) -> str:
    title = f"{name} — {one['prediction']}: {one['probability']:.4f}"
    return f"<p><b>{escape(title)}</b><br>{one['html']}</p>"


def draw(out: Path, found: Mapping[str, Parts]) -> None:
    """Figures 2 to 9, as PNG and SVG, of the data sets that are there.

    Where matplotlib is missing, as on a machine that only computes, they are left to a later run elsewhere.
    """
    if find_spec("matplotlib") is None:
        return
    for dataset, numbers in (("sst2", (2, 5, 7)), ("agnews", (3, 6, 8))):
        rows = rows_of(found.get(dataset, {}))
        if not rows:
            continue
        chosen = chosen_row(found[dataset])
        best = _best_layers(rows)
        main = {n: row for n, row in rows.items() if not n.startswith("decoded") or n in best or n == chosen}
        layers = {
            n: row for n, row in rows.items() if n.startswith("decoded") or n in ("gradcam@1", "random")
        }
        _save(out, f"figure{numbers[0]}", _curves(TITLES[dataset], main, chosen))
        _save(out, f"figure{numbers[1]}", _curves(f"{TITLES[dataset]}, all layers", layers, chosen))
        _clouds(out, f"figure{numbers[2]}", rows, chosen)
    _save(out, "figure4", _overlaps(found, "share of words in common", lambda row, k: row["overlap"][k]))
    _save(out, "figure9", _overlaps(found, "words in common", _raw_count))


def _best_layers(rows: Mapping[str, Row], count: int = 4) -> list[str]:
    decoded = [name for name in rows if name.startswith("decoded")]
    return sorted(decoded, key=lambda name: rows[name]["hiding"] - rows[name]["revealing"])[:count]


def _raw_count(row: Row, k: str) -> float:
    return row["overlap"][k] * math.comb(len(row["top_words"]), 2) * int(k)


def _curves(title: str, rows: Mapping[str, Row], chosen: str | None) -> Any:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    palette = colormaps["tab20"]
    for ax, game in zip(axes, ("revealing", "hiding"), strict=True):
        for i, (name, row) in enumerate(rows.items()):
            style: dict[str, Any] = (
                {"color": "black", "linestyle": ":"} if name == "random" else {"color": palette(i % 20)}
            )
            width = 3.0 if name == chosen else 1.3
            ax.plot(
                [100 * s for s in STEPS], row[f"{game}_curve"], label=label(name), linewidth=width, **style
            )
        ax.set(title=f"{title}: {game} game", xlabel=f"% of tokens {_past(game)}", ylabel="accuracy")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", fontsize=8)
    return figure


def _past(game: str) -> str:
    return {"revealing": "revealed", "hiding": "hidden"}[game]


def _overlaps(found: Mapping[str, Parts], title: str, value: Callable[[Row, str], float]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    for ax, (dataset, parts) in zip(figure.subplots(1, 2), found.items(), strict=True):
        chosen = chosen_row(parts)
        for name, row in _with_overlap(parts).items():
            if not name.startswith("decoded") or name == chosen:
                counts = list(row["overlap"])
                heights = [value(row, k) for k in counts]
                ax.plot(
                    [int(k) for k in counts],
                    heights,
                    label=label(name),
                    linewidth=3 if name == chosen else 1.3,
                )
        ax.set(title=TITLES[dataset], xlabel="top k words", ylabel=title)
        if ax.lines:
            ax.legend(fontsize=8)
    return figure


def _clouds(out: Path, name: str, rows: Mapping[str, Row], chosen: str | None) -> None:
    """Word clouds of each class for the chosen layer and the competitors; none without their package."""
    from matplotlib.figure import Figure

    shown = [n for n in rows if "top_words" in rows[n] and (not n.startswith("decoded") or n == chosen)]
    classes = list(rows[shown[0]]["top_words"]) if shown else []
    if not classes:
        return
    figure = Figure(figsize=(4 * len(classes), 2.2 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), len(classes), squeeze=False)
    try:
        for ax, (method, cls) in zip(axes.flat, _pairs(shown, classes), strict=True):
            cloud = word_cloud(rows[method]["top_words"].get(cls, []), (400, 200))
            ax.imshow(cloud, aspect="auto", interpolation="none")  # or the SVG holds every pixel of the page
            ax.set_title(f"{label(method)}: {cls}", fontsize=9)
            ax.axis("off")
    except MethodError:
        return
    _save(out, name, figure)


def _pairs(first: Sequence[str], second: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((a, b) for a in first for b in second)


def _save(out: Path, name: str, figure: Any) -> None:
    for ending in ("png", "svg"):
        with whole(out / f"{name}.{ending}") as part:
            figure.savefig(part, format=ending, dpi=120)
