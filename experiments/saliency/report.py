"""The saliency experiment as results.json and results.md, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from masklens.evaluation.faithfulness import STEPS

from ..parts import Found
from ..results import commits_of, figure_lines, fits_lines, made_by, table, with_interval, write_results
from .figures import TITLES, ByDataset, chosen_row, draw, label, rows_of, with_overlap

STRONG = 5
"""the level, of nine, from which a word is shown in bold"""

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


def write(out: Path, family: str, found: ByDataset, command: str) -> None:
    """Write the results of the finished parts."""
    results = gathered(family, found, command)
    draw(out, found)
    figures = figure_lines(out, [f"figure{number}" for number in range(2, 10)])
    write_results(out, results, [*summary(family, found, results), *figures])


def gathered(family: str, found: ByDataset, command: str) -> dict[str, Any]:
    """The results file: {data set: {family: {row: areas}}}; the rest by data set."""
    rows = {dataset: rows_of(parts) for dataset, parts in found.items()}
    examples = {dataset: _examples(parts) for dataset, parts in found.items()}
    results: dict[str, Any] = {
        dataset: {family: {name: _areas_of(row) for name, row in some.items()}}
        for dataset, some in rows.items()
    }
    for field in ("overlap", "top_words", "shared_words"):
        results[field] = {d: {n: r[field] for n, r in some.items() if field in r} for d, some in rows.items()}
    results["chosen"] = {
        dataset: {**parts["choice"]["chosen"], "row": chosen_row(parts), "texts": parts["choice"]["texts"]}
        for dataset, parts in found.items()
        if "choice" in parts
    }
    results["examples"] = {dataset: some for dataset, some in examples.items() if some}
    results["lenses"] = {f"{family}-{d}": parts["lens"] for d, parts in found.items() if "lens" in parts}
    commits = commits_of(part for parts in found.values() for part in parts.values())
    return results | {"family": family, "shares": list(STEPS), "command": command, "commits": commits}


def _areas_of(row: Found) -> dict[str, Any]:
    """The areas of a row, without the fields that are elsewhere in the results file."""
    elsewhere = ("name", "site", "overlap", "top_words", "shared_words")
    return {key: value for key, value in row.items() if key not in elsewhere}


def _examples(parts: Mapping[str, Found]) -> dict[str, Any]:
    """The examples of each method, by its name."""
    rows = {"decoded_gradcam": chosen_row(parts)}
    return {rows.get(kind) or kind: part["examples"] for kind, part in parts.items() if part.get("examples")}


def summary(family: str, found: ByDataset, results: Found) -> list[str]:
    """results.md, line by line."""
    lines = [f"# Decoded Grad-CAM on {family}", "", made_by(results), ""]
    lines += [
        "Areas under the accuracy curve, against gold labels, most important tokens first: revealing "
        "(higher is better) and hiding (lower is better). Intervals: 95% bootstrap over texts. The paper's "
        "figures are for RoBERTa and stand beside ours, not in place of them. Layer l is site l + 1.",
        "",
    ]
    for number, (dataset, parts) in enumerate(found.items(), start=1):
        lines += [f"## Table {number}: {TITLES[dataset]}", "", *_areas(dataset, parts)]
        lines += [*_choice(parts), *_overlap(parts), *_shared(parts)]
        lines += _example_lines(results["examples"].get(dataset, {}))
    return lines + fits_lines(results["lenses"])


def _areas(dataset: str, parts: Mapping[str, Found]) -> list[str]:
    rows, chosen = rows_of(parts), chosen_row(parts)
    devices = sorted({row["device"] for row in rows.values() if "device" in row})
    heads = ["explainer", "revealing", "hiding", "paper", f"seconds ({', '.join(devices)})", "texts"]
    return table(heads, [_cells(dataset, name, row, name == chosen) for name, row in rows.items()])


def _cells(dataset: str, name: str, row: Found, chosen: bool) -> list[str]:
    paper = PAPER[dataset].get(name)
    return [
        label(name) + (" **(chosen)**" if chosen else ""),
        *(_area(row, game) for game in ("revealing", "hiding")),
        "" if paper is None else f"{paper[0]:.3f} / {paper[1]:.3f}",
        f"{row['seconds']:.1f}" if row["seconds"] else "",
        str(row["texts"]),
    ]


def _area(row: Found, game: str) -> str:
    spread = row.get(f"{game}_spread")
    return with_interval(row, game) + (f" ±{spread:.3f}" if spread is not None else "")


def _choice(parts: Mapping[str, Found]) -> list[str]:
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


def _overlap(parts: Mapping[str, Found]) -> list[str]:
    rows = with_overlap(parts)
    if not rows:
        return []
    counts = ["10", "20", "50", "100"]
    cells = [[label(name), *(f"{row['overlap'][k]:.3f}" for k in counts)] for name, row in rows.items()]
    title = "Share of top k words that two classes have in common (Figure 4):"
    return [title, "", *table(["explainer", *(f"k = {k}" for k in counts)], cells)]


def _shared(parts: Mapping[str, Found]) -> list[str]:
    """The paper's Tables 3 to 9: words in the top 50 of both classes, for each pair."""
    rows, chosen = rows_of(parts), chosen_row(parts)
    shown = [n for n in rows if "shared_words" in rows[n] and (not n.startswith("decoded") or n == chosen)]
    pairs = [(a, b) for a, b, _ in rows[shown[0]]["shared_words"]] if shown else []
    lines = []
    for i, (a, b) in enumerate(pairs):
        common = {name: rows[name]["shared_words"][i : i + 1] for name in shown}
        cells = [[label(n), ", ".join(some[0][2] if some else []) or "(none)"] for n, some in common.items()]
        lines += [f"Words in the top 50 of both {a} and {b}:", "", *table(["explainer", "words"], cells)]
    return lines


def _example_lines(found: Mapping[str, Sequence[Found]]) -> list[str]:
    """Appendix A.5: each text with the words that a method highlights."""
    if not found:
        return []
    lines = ["Examples of appendix A.5; bold: at least half of the largest score.", ""]
    for i, one in enumerate(next(iter(found.values()))):
        rows = [[label(name), _bold(some[i]["words"])] for name, some in found.items()]
        lines += [f"{one['prediction']}: {one['probability']:.4f}", "", *table(["explainer", "text"], rows)]
    return lines


def _bold(words: list[tuple[str, int]]) -> str:
    return " ".join(f"**{word}**" if level >= STRONG else word for word, level in words).replace("|", "/")
