"""`masklens demo`: the packaged model explained on a few reviews, ending in a report to open."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import masklens

from ..files import check_writable
from ..files.reading import read_labels, read_texts
from ..model.default import HOME, OVER
from ..progress import stage
from ..records.layers import site_name
from . import options
from .console import draw, print_json, working
from .inputs import load_subject

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..evaluation.table import Table
    from ..records.verification import Verification

REVIEWS = HOME.parent / "reviews.csv"
INPUTS = "diffmask (inputs)"
GRADIENTS = "integrated_gradients"


def demo(
    out: Annotated[Path, options.of_output("--out", "FOLDER", "The report's folder.")] = Path("out/demo"),
    device: options.Device = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Explain a few reviews with the packaged model and write a report to open.

    [bold]Examples[/bold]

      masklens demo
      masklens demo --out somewhere --device cuda
    """
    with working():
        made = run(out, device, seed)
    if as_json:
        print_json({"report": str(made.report), "summary": made.summary})
        return
    draw([made.shown])
    typer.echo(f"{made.summary}\n\nOpen {made.report} in a browser.")


class Demo(NamedTuple):
    report: Path
    shown: Attribution
    """the attribution to print"""
    summary: str


def run(out: Path, device: str | None = None, seed: int = 0) -> Demo:
    """Explain the packaged reviews in four ways, write OUT/report.html, and return what to print."""
    from ..evaluation.verify import Verifier
    from ..records.verification import control_line

    check_writable(out / "report.html")
    subject = load_subject(None, device)
    texts, labels = read_reviews()
    with stage(f"explaining {len(texts)} reviews in four ways"):
        lenses = {over: masklens.DiffMask.default(subject, over) for over in OVER}
        sets: dict[str, Sequence[Attribution]] = {
            f"diffmask ({over})": lens.explain(texts, seed=seed) for over, lens in lenses.items()
        }
        sets["decoded_gradcam"] = masklens.explain(subject, texts, "decoded_gradcam", lm_head=HOME, seed=seed)
        sets[GRADIENTS] = masklens.explain(subject, texts, GRADIENTS, seed=seed)
    with stage("playing the hiding and revealing games"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report has them, beside the table
        table = masklens.evaluate(subject, sets, labels=labels, metrics=["revealing", "hiding"], seed=seed)
    with stage("verifying and writing the report"):
        made = masklens.report(
            sets,
            out / "report.html",
            "Reviews, explained by the packaged model",
            subject,
            list(lenses.values()),
            labels=labels,
            evaluation=table,
        )
        proofs = masklens.verify(subject, sets[INPUTS], replace=lenses["inputs"], control=False)
        verifier = Verifier(subject, texts)
        (checked,) = verifier.at_sites(sets[GRADIENTS], sets[GRADIENTS][0].sites)
        line = f"{GRADIENTS}, verified: {control_line(checked, verifier.random())}"
    return Demo(made, most_changing(sets[INPUTS]), summary(sets, labels, proofs, table, line))


ROOM = 69
"""columns left for tokens on a terminal of 80 columns, beside the names of layers"""


def most_changing(found: Sequence[Attribution]) -> Attribution:
    """Of the texts that fit on a line, the one whose keep probabilities differ most from layer to layer."""
    short = [a for a in found if sum(max(len(token), 5) + 1 for token in a.tokens) <= ROOM]
    return max(short or found, key=lambda a: float(a.scores.std(0).mean()))


def read_reviews() -> tuple[list[str], list[str]]:
    """The texts and their labels."""
    return [str(text) for text in read_texts(str(REVIEWS))], read_labels(str(REVIEWS), "label")


def summary(
    sets: Mapping[str, Sequence[Attribution]],
    labels: Sequence[str],
    proofs: Sequence[Verification],
    table: Table,
    line: str,
) -> str:
    """Short lines: what was explained, what the lens drops, how that changes the output, and how the methods
    compare."""
    found = sets[INPUTS]
    right = sum(a.prediction == label for a, label in zip(found, labels, strict=True))
    removed = sum(proof.share_removed for proof in proofs) / len(proofs)
    same = sum(proof.prediction_kept for proof in proofs)
    before, after = (
        sum(getattr(proof, f"probability_{when}") for proof in proofs) / len(proofs)
        for when in ("before", "after")
    )
    areas = [_best_layer(table, name, chosen[0].sites) for name, chosen in sets.items()]
    areas.append(("random order", table["random"]["hiding"].value, ""))
    width = max(len(name) for name, *_ in areas)
    return "\n".join(
        [
            f"The packaged model reads {len(found)} reviews and gets {right} right.",
            "",
            f"At its last block, the lens over inputs drops {removed:.0%} of the words. Without these:",
            f"  {same} of {len(found)} predictions stay",
            f"  their probability goes from {before:.2f} to {after:.2f} on average",
            "",
            "The hiding game, each method at its best layer (lower is better):",
            *(f"  {name:<{width}}  {area:.2f}  {layer}".rstrip() for name, area, layer in areas),
            "",
            f"{line}.",
        ]
    )


def _best_layer(table: Table, name: str, sites: Sequence[int]) -> tuple[str, float, str]:
    """A method, its smallest hiding area over layers, and the layer with that area."""
    areas = {site: table[name if len(sites) == 1 else f"{name}@{site}"]["hiding"].value for site in sites}
    best = min(areas, key=lambda site: areas[site])
    return name, areas[best], site_name(best)
