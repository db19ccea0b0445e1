"""The pieces of sst.py as results.json and results.md, with the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import whole
from .running import write_json
from .sst_faithfulness import BOUND, KEEP
from .study import commits_of, described, seconds_of

Found = Mapping[str, Any]

PAPER_TABLE2 = {
    "diffmask": {"precision": 0.8126, "recall": 0.8589, "f1": 0.8075, "optimality": 0.3267, "l0": 0.3058},
    "reinforce": {"precision": 0.7469, "recall": 0.8082, "f1": 0.7357, "optimality": 0.0883, "l0": 0.3313},
}
PAPER_FAITHFULNESS = {
    "inputs": {"before": 0.379, "after": 0.383, "masked": 0.463},
    "states": {"before": 0.379, "after": 0.389, "masked": 0.676},
}
"""F1 on dev (BERT base, five classes) and the share masked"""
PAPER_DEVIATION = {"inputs": 0.05, "states": 0.03}
FIGURES = (4, 5, 6, 12, 13)
PAPER_CLS = {"diffmask": 0.99, "information_bottleneck": 0.71}
"""how often the last state of [CLS] has the largest attribution"""


def write(out: Path, command: str, suffix: str) -> None:
    """Write what can be said from the pieces that are there."""
    found = read_pieces(out / "parts", suffix)
    every = [piece for pieces in found.values() for piece in pieces.values()]
    results = gathered(found) | {"command": command, "commits": commits_of(every)}
    write_json(out / "results.json", results)
    draw(out, results["analysis"])
    lines = [*summary(results), *_pictures(out)]
    with whole(out / "results.md") as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pictures(out: Path) -> list[str]:
    """The figures that are there, and the page."""
    lines = [f"![Figure {n}](figure{n}.png)" for n in FIGURES if (out / f"figure{n}.png").exists()]
    page = ["", "All examples, to look into: [examples.html](examples.html)"]
    return lines + (page if (out / "examples.html").exists() else [])


def draw(out: Path, found: Mapping[str, Found]) -> None:
    """Figures 4 and 5; those of the examples are drawn when these are explained."""
    from .sst_figures import draw_groups

    lenses = {over: piece for over, piece in found.items() if "sentiment" in piece}
    if lenses:
        draw_groups(out, "figure4", "sentiment", lenses)
        draw_groups(out, "figure5", "part_of_speech", lenses)


def read_pieces(folder: Path, suffix: str) -> dict[str, dict[str, Found]]:
    """{model or "gru": {piece: what was found}}"""
    found: dict[str, dict[str, Found]] = {}
    for place in sorted(folder.glob(f"*{suffix}")):
        name = place.name.removesuffix(suffix)
        found[name] = {
            p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(place.glob("*.json"))
        }
    return found


def gathered(found: Mapping[str, Mapping[str, Found]]) -> dict[str, Any]:
    """The results file."""
    from .sst import MODELS, OVERS

    models = sorted(
        (name for name in found if name != "gru"), key=lambda m: (m not in MODELS, (*MODELS, m).index(m))
    )
    gru = found.get("gru", {})
    results: dict[str, Any] = {
        "table2": gru.get("erasure-table", {}).get("rows", {}),
        "faithfulness": {m: f for m in models if (f := _faithfulness(found[m], OVERS))},
        "stability": _first_of(models, found, "stability", OVERS),
        "analysis": _first_of(models, found, "analysis", (*OVERS, "bottleneck")),
        "lenses": {
            f"{m}-{piece.removeprefix('lens-')}": lens
            for m in models
            for piece, lens in found[m].items()
            if piece.startswith("lens-")
        },
    }
    if "erasure-table" in gru:
        results["gru"] = {key: value for key, value in gru["erasure-table"].items() if key != "rows"}
    return results


def _faithfulness(pieces: Mapping[str, Found], overs: Iterable[str]) -> dict[str, Any]:
    """{split: {over: measures}} of one model."""
    there = {over: pieces[f"faithfulness-{over}"] for over in overs if f"faithfulness-{over}" in pieces}
    return {
        split: {over: piece[split] for over, piece in there.items()}
        for split in ("dev", "test")
        if any(split in piece for piece in there.values())
    }


def _first_of(
    models: Sequence[str], found: Mapping[str, Mapping[str, Found]], part: str, overs: Iterable[str]
) -> dict[str, Any]:
    """A part that one model is enough for, from the first model that has it: {over: what was found}."""
    gathered = {}
    for over in overs:
        there = [m for m in models if f"{part}-{over}" in found[m]]
        if there:
            gathered[over] = {"model": there[0], **found[there[0]][f"{part}-{over}"]}
    return gathered


def summary(results: Mapping[str, Any]) -> list[str]:
    """The results for people."""
    lines = ["# DiffMask on sentiment", "", made_by(results), ""]
    lines += _table2(results) if results["table2"] else []
    for model, splits in results["faithfulness"].items():
        lines += _model(model, splits)
    lines += _stability(results["stability"]) if results["stability"] else []
    lines += _analysis(results["analysis"]) if results["analysis"] else []
    lines += _fits(results["lenses"]) if results["lenses"] else []
    return lines


def made_by(results: Mapping[str, Any]) -> str:
    return f"Made by `{results['command']}` at commit {', '.join(results['commits'])}."


def _table2(results: Mapping[str, Any]) -> list[str]:
    names = list(PAPER_TABLE2["diffmask"])
    rows = []
    for row, found in results["table2"].items():
        paper = PAPER_TABLE2.get(row, {})
        cells = [f"{found[n]:.3f}" + (f" ({paper[n]:.3f})" if paper else "") for n in names]
        rows.append([row, *cells])
    title = "## Table 2: masks against exact search (the paper's in brackets)"
    return [title, "", *table(["", *names], rows), _about_table2(results["gru"]), ""]


def _about_table2(gru: Found) -> str:
    scores, exact = gru["accuracy"], gru["exact"]
    return (
        f"A GRU on the word embeddings of {gru['embeddings']}, accuracy {scores['dev']:.3f} on dev and "
        f"{scores['test']:.3f} on test; {gru['sentences']} dev sentences of up to 25 words. A set of words "
        f"is enough if the output moves by at most {gru['margin']} nats with zeros in place of the others. "
        f"Exact search keeps {exact['l0']:.3f} of the words and finds {exact['optima']:.1f} optima a "
        "sentence. A mask is compared with the closest one, and keeps a word at least. `_settled`: single "
        "words are opened and closed after learning until the margin holds and none can go; "
        "`settling_alone` does so from whole sentences, without anything learned."
    )


def _model(model: str, splits: Mapping[str, Any]) -> list[str]:
    lines = [f"## Faithfulness: {model}", ""]
    heads = ["masks over", "set", "masked", "accuracy", "F1 macro", "F1 of batches", "agreement", "KL", "ok"]
    rows = [
        _overall(f"{over}, {kind}", split, found["before"], masks)
        for split, overs in splits.items()
        for over, found in overs.items()
        for kind, masks in _kinds(found)
    ]
    lines += table(heads, rows)
    lines += [
        "Inputs: the deepest site. States: the mean over sites, one site masked at a time. Gates alone: "
        "tokens with P(kept) > 0.5, without a look at the output. Guarded: tokens with "
        f"P(kept) > {KEEP}, and of texts that move by more than {BOUND} nats further ones, in order of "
        "P(kept), until they do not; the paper's Eq. 2 sets such a bound for every text. Their KL is bounded "
        "by construction, agreement and accuracy are not. "
        "The paper (BERT, five classes, dev; F1 of batches): inputs 0.379 → 0.383 at 46.3% masked, "
        "states 0.379 → 0.389 at 67.6% masked.",
        "",
    ]
    for split, overs in splits.items():
        for over, found in overs.items():
            lines += [f"### {model}, masks over {over}, {split}, every site", ""]
            lines += [f"The lens: {described(found['lens'])}.", ""]
            for kind, masks in _kinds(found):
                rows = [_site(site) for site in masks["sites"]]
                lines += [f"{kind.capitalize()}:", "", *table(["site", *heads[2:]], rows)]
    return lines


def _kinds(found: Found) -> Iterator[tuple[str, Found]]:
    """The masks that were measured, and what to call them."""
    yield "gates alone", found
    yield "guarded", found["guarded"]


def _overall(name: str, split: str, before: Found, found: Found) -> list[str]:
    after = found["summary"]
    changes = (f"{before[n]:.3f} → {after[n]:.3f}" for n in ("accuracy", "f1_macro", "f1_batch"))
    return [
        name,
        split,
        f"{after['masked']:.1%}",
        *changes,
        f"{after['agreement']:.1%}",
        f"{after['divergence']:.4f}",
        "yes" if all(site["ok"] for site in found["sites"]) else "NO",
    ]


def _site(site: Found) -> list[str]:
    cells = [_with_interval(site, name) for name in ("masked", "accuracy", "f1_macro")]
    agreement, divergence = (_with_interval(site, name) for name in ("agreement", "divergence"))
    return [
        str(site["site"]), *cells, f"{site['f1_batch']:.3f}", agreement, divergence,
        "yes" if site["ok"] else "NO",
    ]  # fmt: skip


def _with_interval(site: Found, name: str) -> str:
    low, high = site[f"{name}_interval"]
    return f"{site[name]:.3f} [{low:.3f}, {high:.3f}]"


def _stability(found: Mapping[str, Found]) -> list[str]:
    rows = [
        [
            over,
            f"{s['deviation']:.3f}",
            f"{PAPER_DEVIATION[over]:.2f}",
            "-" if s["rank_agreement"] is None else f"{s['rank_agreement']:.3f}",
            str(s["lenses"]),
        ]
        for over, s in found.items()
    ]
    heads = ["masks over", "standard deviation", "paper", "agreement of ranks", "lenses"]
    model = next(iter(found.values()))["model"]
    return [f"## Stability over seeds: {model}, dev", "", *table(heads, rows)]


def _analysis(found: Mapping[str, Found]) -> list[str]:
    lines = [f"## What the model keeps: {next(iter(found.values()))['model']}, dev", ""]
    for field, title in (("sentiment", "sentiment of the word"), ("part_of_speech", "part of speech")):
        for over in ("inputs", "states"):
            if over in found:
                lines += [f"Mean number of layers that keep it, masks over {over}, by {title}:", ""]
                lines += table([title, "tokens", "layers", "95% interval"], groups_table(found[over][field]))
    lines += _by_prediction(found)
    rows = [
        [name, f"{found[piece]['first_token']['last_site']:.1%}", f"{PAPER_CLS[name]:.0%}",
         f"{found[piece]['first_token']['all_sites']:.1%}"]
        for name, piece in (("diffmask", "states"), ("information_bottleneck", "bottleneck"))
        if piece in found
    ]  # fmt: skip
    if rows:
        lines += ["How often the last state of the classification token has the largest attribution:", ""]
        lines += table(["", "of the last site's", "paper", "of all sites'"], rows)
    return lines


def _by_prediction(found: Mapping[str, Found]) -> list[str]:
    """How much stays of the texts of each class, first and last site: a lens that keeps next to nothing of
    one class tells the prediction rather than explaining it."""
    rows = [
        [over, f"`{name}`", str(g["count"]), f"{g['by_site'][0]:.2f}", f"{g['by_site'][-1]:.2f}"]
        for over in ("inputs", "states")
        for name, g in found.get(over, {}).get("prediction", {}).get("groups", {}).items()
    ]
    if not rows:
        return []
    heads = ["masks over", "prediction for the text", "tokens", "kept at the first site", "at the last"]
    return [
        "Mean keep probability of words by what the model predicts for their text:",
        "",
        *table(heads, rows),
    ]


def groups_table(made: Found) -> list[list[str]]:
    return [
        [f"`{name}`", str(g["count"]), f"{g['mean']:.2f}", f"[{g['low']:.2f}, {g['high']:.2f}]"]
        for name, g in made["groups"].items()
    ]


def _fits(lenses: Mapping[str, Found]) -> list[str]:
    rows = [
        [
            name,
            str(lens["texts"]),
            seconds_of(lens),
            lens["settings"]["device"],
            f"{max(d['divergence'] for d in lens['diagnostics']):.3f}",
            f"{1 - lens['diagnostics'][-1]['kept']:.1%}",
        ]
        for name, lens in lenses.items()
    ]
    heads = ["lens", "texts", "seconds", "device", "largest KL held out", "masked, deepest site"]
    return ["## Fits", "", *table(heads, rows)]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]
