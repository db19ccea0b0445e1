"""Figures 2 to 9 of the Decoded Grad-CAM paper, as PNG; what the report and they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from masklens.errors import MethodError
from masklens.evaluation.faithfulness import STEPS

from ..parts import Found
from ..results import can_draw, save_figure

ByDataset = Mapping[str, Mapping[str, Found]]
"""{data set: {kind of part: what was found}}"""
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


def rows_of(parts: Mapping[str, Found]) -> dict[str, Found]:
    """Every row by name."""
    return {row["name"]: row for part in parts.values() for row in part.get("rows", [])}


def chosen_row(parts: Mapping[str, Found]) -> str | None:
    """The decoded layer that was chosen on training texts."""
    return f"decoded_gradcam@{parts['choice']['chosen']['site']}" if "choice" in parts else None


def label(name: str) -> str:
    """A row's name as the paper has it; the output of block l is site l + 1."""
    if name.startswith("decoded_gradcam@"):
        return f"Decoded Grad-CAM l{int(name.split('@')[1]) - 1}"
    return NAMES.get(name, name)


def with_overlap(parts: Mapping[str, Found]) -> dict[str, Found]:
    """Rows whose classes can be compared: the model predicted more than one."""
    return {
        n: row for n, row in rows_of(parts).items() if "overlap" in row and row["overlap"]["50"] is not None
    }


def draw(out: Path, found: ByDataset) -> None:
    """Figures 2 to 9 of the data sets that are there."""
    if not can_draw():
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
        save_figure(out, f"figure{numbers[0]}", _curves(TITLES[dataset], main, chosen))
        save_figure(out, f"figure{numbers[1]}", _curves(f"{TITLES[dataset]}, all layers", layers, chosen))
        _clouds(out, f"figure{numbers[2]}", rows, chosen)
    save_figure(
        out, "figure4", _overlaps(found, "share of words in common", lambda row, k: row["overlap"][k])
    )
    save_figure(out, "figure9", _overlaps(found, "words in common", _raw_count))


def _best_layers(rows: Mapping[str, Found], count: int = 4) -> list[str]:
    decoded = [name for name in rows if name.startswith("decoded")]
    return sorted(decoded, key=lambda name: rows[name]["hiding"] - rows[name]["revealing"])[:count]


def _raw_count(row: Found, k: str) -> float:
    return row["overlap"][k] * math.comb(len(row["top_words"]), 2) * int(k)


def _curves(title: str, rows: Mapping[str, Found], chosen: str | None) -> Any:
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


def _overlaps(found: ByDataset, title: str, value: Callable[[Found, str], float]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    for ax, (dataset, parts) in zip(figure.subplots(1, 2), found.items(), strict=True):
        chosen = chosen_row(parts)
        for name, row in with_overlap(parts).items():
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


def word_cloud(words: Mapping[str, float] | Sequence[tuple[str, float]], size: tuple[int, int]) -> Any:
    """A picture in which the words' areas show their scores (PIL); needs the package wordcloud."""
    try:
        from wordcloud import WordCloud
    except ImportError as error:
        raise MethodError("word clouds need the package wordcloud: pip install wordcloud") from error
    weights = {word: score for word, score in dict(words).items() if score > 0}
    cloud = WordCloud(width=size[0], height=size[1], background_color="white", random_state=0)
    return cloud.generate_from_frequencies(weights or {"(none)": 1.0}).to_image()


def _clouds(out: Path, name: str, rows: Mapping[str, Found], chosen: str | None) -> None:
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
            ax.imshow(cloud, aspect="auto", interpolation="none")
            ax.set_title(f"{label(method)}: {cls}", fontsize=9)
            ax.axis("off")
    except MethodError:
        return
    save_figure(out, name, figure)


def _pairs(first: Sequence[str], second: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((a, b) for a in first for b in second)
