"""Verification over a set of texts: the ranking with which a report opens, and curves over layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..records.layers import site_name
from ..records.verification import LEVEL, control_line, standing
from .page import Chart, Entry, Grid, Panel, in_order, layer_chart, with_arrow

if TYPE_CHECKING:
    from ..evaluation.table import Cell, Table
    from ..records.verification import Verification

Proofs = Mapping[str, Mapping[int, Sequence["Verification"]]]
"""the verifications of a set of texts, by name and site"""
MEASURED = {
    "texts that pass": lambda proof: proof.passed,
    "tokens needed": lambda proof: proof.share_needed,
    "probability before": lambda proof: proof.probability_before,
    "probability after": lambda proof: proof.probability_after,
    "divergence (nats)": lambda proof: proof.divergence,
}
"""the means over texts that are shown"""
DRAWN = ("texts that pass", "tokens needed", "divergence (nats)")


def by_name(entries: Sequence[Entry]) -> Proofs:
    """The verifications of each name at each site."""
    found: dict[str, dict[int, list[Verification]]] = {}
    for entry in entries:
        for site, proof in zip(entry.attribution.sites, entry.proofs, strict=False):
            found.setdefault(entry.name, {}).setdefault(site, []).append(proof)
    return found


def proof_panels(
    proofs: Proofs,
    random: Sequence[Verification] = (),
    table: Table | None = None,
    seconds: Mapping[str, float] | None = None,
) -> list[Panel]:
    """The ranking of the methods, curves over layers, and a table of all means.

    Args:
        random: verifications of random orders.
        table: the result of `evaluate`, whose columns are added to the ranking.
        seconds: the seconds that each method took for a text.
    """
    if not proofs or max(len(some) for at in proofs.values() for some in at.values()) < 2:
        return []
    means = {name: {site: _means(some) for site, some in at.items()} for name, at in proofs.items()}
    rows = [
        [name, site_name(site), len(proofs[name][site]), *values.values()]
        for name, at in means.items()
        for site, values in at.items()
    ]
    measures = [(name, site) for name, at in means.items() for site in at]
    columns = ["method", "layer", "texts", *MEASURED]
    every = Grid("Verification", columns, rows, "Means over texts.", percent=[3, 4], measures=measures)
    return [ranking_grid(proofs, random, table, seconds or {}), *_charts(means), every]


def _means(proofs: Sequence[Verification]) -> dict[str, float]:
    return {
        what: round(float(np.mean([read(proof) for proof in proofs])), 4) for what, read in MEASURED.items()
    }


def _charts(means: Mapping[str, Mapping[int, Mapping[str, float]]]) -> list[Chart]:
    """Curves of the means over layers, for the names with several layers."""
    several = {name: at for name, at in means.items() if len(at) > 1}
    if not several:
        return []
    return [
        layer_chart(
            f"Verification: {what}",
            {name: {site: values[what] for site, values in at.items()} for name, at in several.items()},
            measure=what,
        )
        for what in DRAWN
    ]


def ranking_grid(
    proofs: Proofs,
    random: Sequence[Verification],
    table: Table | None,
    seconds: Mapping[str, float],
) -> Grid:
    """The table of the methods at their best layers, best first, then random orders and reversed scores."""
    best = {name: _best(at) for name, at in proofs.items()}
    names = sorted(best, key=lambda name: standing(proofs[name][best[name]]), reverse=True)
    metrics = in_order(table.metrics) if table else []
    rows = [
        [name, site_name(best[name]), *_figures(proofs[name][best[name]])]
        + [seconds.get(name), *_cells(table, name, best[name], metrics)]
        for name in names
    ]
    if random:
        rows.append(["random order", "", *_figures(random), None, *_cells(table, "random", None, metrics)])
    turned = [_reversed(proofs[name][best[name]]) for name in names]
    if any(share is not None for share in turned):
        shares = [share for share in turned if share is not None]
        rows.append(["reversed", "", float(np.mean(shares)), *[None] * (2 + len(metrics))])
    lines = [
        f"{name}, {site_name(best[name])}, {control_line(proofs[name][best[name]], random)}" for name in names
    ]
    note = (
        "A text passes if some of its tokens suffice, random orders do not need fewer, and random "
        f"explanations do worse (p at most {LEVEL}). " + "; ".join(lines) + "."
    )
    columns = ["method", "best layer", "texts that pass ↑", "tokens needed ↓", "seconds a text"]
    columns += [with_arrow(table, metric) for metric in metrics] if table else []
    return Grid("Which method?", columns, rows, note, percent=[2, 3], lead=True)


def _best(at: Mapping[int, Sequence[Verification]]) -> int:
    """The layer at which most texts pass."""
    return max(at, key=lambda site: standing(at[site]))


def _figures(proofs: Sequence[Verification]) -> tuple[float, float]:
    passed, needed = standing(proofs)
    return passed, -needed


def _reversed(proofs: Sequence[Verification]) -> float | None:
    """The share of texts that pass with reversed scores; None if this was not tried."""
    known = [proof.p_reversed for proof in proofs if proof.p_reversed is not None]
    return float(np.mean([p <= LEVEL for p in known])) if known else None


def _cells(table: Table | None, name: str, site: int | None, metrics: Sequence[str]) -> list[Any]:
    """The row of an evaluation, with its intervals, in two digits."""
    if table is None:
        return []
    row = table.rows.get(f"{name}@{site}") or table.rows.get(name) or {}
    return [_short(row[metric]) if metric in row else None for metric in metrics]


def _short(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return _digits(cell.value)
    return f"{_digits(cell.value)} [{_digits(cell.low)}, {_digits(cell.high)}]"


def _digits(value: float) -> str:
    """A number with two decimals; one that is close to 0 with two digits."""
    return f"{value:.2g}" if 0 < abs(value) < 0.095 else f"{value:.2f}"
