"""`masklens demo`: the packaged model explained on a few reviews, ending in a report to open."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import packaged
from .attribution import Attribution
from .diffmask.lens import DiffMask
from .evaluation import evaluate, verify
from .evaluation.table import Table
from .evaluation.verifying import Verification
from .explaining import explain
from .reporting import report

REVIEWS = packaged.HOME.parent / "reviews.csv"
Sets = dict[str, Sequence[Attribution]]


def run(out: Path, device: str | None = None, seed: int = 0) -> tuple[Path, Attribution, str]:
    """Explain the packaged reviews in four ways, write OUT/report.html, and say what is in it.

    Returns the report, one attribution to show, and the summary.
    """
    out.mkdir(parents=True, exist_ok=True)
    subject = packaged.load_default(device)
    texts, labels = read_reviews()
    lenses = {over: packaged.lens(subject, over) for over in packaged.OVER}
    sets: Sets = {f"diffmask ({over})": lens.explain(texts, seed=seed) for over, lens in lenses.items()}
    sets["decoded_gradcam"] = explain(subject, texts, "decoded_gradcam", lm_head=packaged.HOME, seed=seed)
    sets["integrated_gradients"] = explain(subject, texts, "integrated_gradients", seed=seed)
    table = evaluate(subject, sets, labels=labels, metrics=["revealing", "hiding"], seed=seed)
    made = report(
        sets,
        out / "report.html",
        "Reviews, explained by the packaged model",
        subject,
        list(lenses.values()),
        labels=labels,
        evaluation=table,
    )
    proofs = verify(subject, sets["diffmask (inputs)"], replace=lenses["inputs"])
    return (
        made,
        most_changing(sets["diffmask (inputs)"]),
        summary(sets, labels, lenses["inputs"], proofs, table),
    )


def most_changing(found: Sequence[Attribution]) -> Attribution:
    """The text whose keep probabilities differ most from layer to layer."""
    return max(found, key=lambda a: float(a.scores.std(0).mean()))


def read_reviews() -> tuple[list[str], list[str]]:
    """The texts and their labels."""
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def summary(
    sets: Mapping[str, Sequence[Attribution]],
    labels: Sequence[str],
    lens: DiffMask,
    proofs: Sequence[Verification],
    table: Table,
) -> str:
    """One paragraph: what was explained, what the lens drops, what that does, and how the methods compare."""
    found = sets["diffmask (inputs)"]
    right = sum(a.prediction == label for a, label in zip(found, labels, strict=True))
    removed = sum(proof.share_removed for proof in proofs) / len(proofs)
    same = sum(proof.prediction_kept for proof in proofs)
    moved = sum(proof.divergence for proof in proofs) / len(proofs)
    games = ", ".join(_best_site(table, name, chosen[0].sites) for name, chosen in sets.items())
    return (
        f"The packaged model reads {len(found)} reviews and gets {right} right. From what it knows at its "
        f"last block, the lens over inputs drops {removed:.0%} of the words; with these really taken out, "
        f"{same} of {len(found)} predictions stay, and the output moves by {moved:.3f} nats on average "
        f"(margin {lens.settings.margin}). In the hiding game (the area under accuracy while the words that "
        f"a method ranks highest are hidden; lower is better) the best site of each method has: {games}; "
        f"random order has {table['random']['hiding'].value:.2f}. The report shows all of it, text by text "
        f"and layer by layer."
    )


def _best_site(table: Table, name: str, sites: Sequence[int]) -> str:
    """A method, the smallest hiding area of its sites, and which site that is."""
    areas = {site: table[name if len(sites) == 1 else f"{name}@{site}"]["hiding"].value for site in sites}
    best = min(areas, key=lambda site: areas[site])
    return f"{name} {areas[best]:.2f} (site {best})"
