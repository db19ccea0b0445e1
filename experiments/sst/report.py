"""The sentiment experiment as results.json and results.md, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..model_run import OVERS
from ..parts import Found
from ..results import (
    can_draw,
    commits_of,
    figure_lines,
    fits_lines,
    groups_lines,
    made_by,
    one_line,
    table,
    with_interval,
    write_results,
    yes_or_no,
)
from .faithfulness import BOUND, KEEP
from .figures import draw_groups

ByModel = Mapping[str, Mapping[str, Found]]
"""{model: {part: what was found}}"""

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
FIGURES = ("figure4", "figure5", "figure6", "figure12", "figure13")
PAPER_CLS = {"diffmask": 0.99, "information_bottleneck": 0.71}
"""how often the last state of [CLS] has the largest attribution"""


def write(out: Path, found: ByModel, table2: Found | None, command: str) -> None:
    """Write what the parts that are done have to say."""
    every = [part for parts in found.values() for part in parts.values()] + ([table2] if table2 else [])
    results = gathered(found, table2) | {"command": command, "commits": commits_of(every)}
    draw(out, results["analysis"])
    write_results(out, results, [*summary(results), *figure_lines(out, FIGURES)])


def draw(out: Path, found: Mapping[str, Found]) -> None:
    """Figures 4 and 5; those of the examples are drawn when these are explained."""
    lenses = {over: part for over, part in found.items() if "sentiment" in part}
    if lenses and can_draw():
        draw_groups(out, "figure4", "sentiment", lenses)
        draw_groups(out, "figure5", "part_of_speech", lenses)


def gathered(found: ByModel, table2: Found | None) -> dict[str, Any]:
    """The results file."""
    table2 = dict(table2 or {})
    results: dict[str, Any] = {
        "table2": table2.pop("rows", {}),
        "faithfulness": {model: f for model, parts in found.items() if (f := _faithfulness(parts))},
        "stability": _from_the_first(found, "stability", OVERS),
        "analysis": _from_the_first(found, "analysis", (*OVERS, "bottleneck")),
        "lenses": {
            f"{model}-{name.removeprefix('lens/').replace('/', '-')}": part
            for model, parts in found.items()
            for name, part in parts.items()
            if name.startswith("lens/")
        },
    }
    return results | ({"gru": table2} if table2 else {})


def _faithfulness(parts: Mapping[str, Found]) -> dict[str, Any]:
    """{split: {over: measures}} of one model."""
    there = {over: parts[f"faithfulness/{over}"] for over in OVERS if f"faithfulness/{over}" in parts}
    return {split: {over: part[split] for over, part in there.items()} for split in ("dev", "test") if there}


def _from_the_first(found: ByModel, kind: str, names: Iterable[str]) -> dict[str, Any]:
    """Parts that one model is enough for, from the first model that has them: {name: what was found}."""
    gathered = {}
    for name in names:
        there = [model for model, parts in found.items() if f"{kind}/{name}" in parts]
        if there:
            gathered[name] = {"model": there[0], **found[there[0]][f"{kind}/{name}"]}
    return gathered


def summary(results: Mapping[str, Any]) -> list[str]:
    """The results for people."""
    lines = ["# DiffMask on sentiment", "", made_by(results), ""]
    lines += _table2(results) if results["table2"] else []
    for model, splits in results["faithfulness"].items():
        lines += _model(model, splits)
    lines += _stability(results["stability"]) if results["stability"] else []
    lines += _analysis(results["analysis"]) if results["analysis"] else []
    return lines + fits_lines(results["lenses"])


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
            lines += [f"The lens: {one_line(found['lens'])}.", ""]
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
        yes_or_no(all(site["ok"] for site in found["sites"])),
    ]


def _site(site: Found) -> list[str]:
    cells = [with_interval(site, name) for name in ("masked", "accuracy", "f1_macro")]
    agreement, divergence = (with_interval(site, name) for name in ("agreement", "divergence"))
    return [
        str(site["site"]), *cells, f"{site['f1_batch']:.3f}", agreement, divergence,
        yes_or_no(site["ok"]),
    ]  # fmt: skip


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
        for over in OVERS:
            if over in found:
                about = f"Mean number of layers that keep it, masks over {over}, by {title}:"
                lines += groups_lines(about, title, found[over][field])
    lines += _by_prediction(found)
    rows = [
        [name, f"{found[part]['first_token']['last_site']:.1%}", f"{PAPER_CLS[name]:.0%}",
         f"{found[part]['first_token']['all_sites']:.1%}"]
        for name, part in (("diffmask", "states"), ("information_bottleneck", "bottleneck"))
        if part in found
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
        for over in OVERS
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
