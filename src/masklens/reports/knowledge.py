"""The knowledge curve of a lens: the share of tokens that can be dropped at each layer, on held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records.layers import site_name
from .page import Chart, layer_chart

NORMAL_95 = 1.96
"""standard errors on either side of a 95% interval"""


def shares(lens: Any) -> dict[int, tuple[float, float]]:
    """By site: the share of tokens that can be dropped, and half the width of its 95% interval."""
    return {d.site: (1 - d.kept, NORMAL_95 * d.kept_error) for d in lens.diagnostics}


def knowledge_chart(lenses: Sequence[Any]) -> list[Chart]:
    """The curves of the lenses that have diagnostics, as a part of a report."""
    judged = {f"diffmask ({lens.over})": lens for lens in lenses if lens.diagnostics}
    if not judged:
        return []
    found = {name: shares(lens) for name, lens in judged.items()}
    widest = max(half for curve in found.values() for _, half in curve.values())
    margins = sorted({lens.settings.margin for lens in judged.values()})
    note = (
        f"The share of tokens that can go with what the model knows at each layer, while the output moves by "
        f"at most {' or '.join(map(str, margins))} nats on average. Texts that the lens was not fitted on; "
        f"95% intervals are ±{widest:.1%} or less."
    )
    curves = {name: {site: share for site, (share, _) in curve.items()} for name, curve in found.items()}
    return [layer_chart("Knowledge curve: what can go at each layer", curves, "share", note)]


def knowledge_figure(lens: Any) -> Any:
    """The curve of a lens as a matplotlib figure, with its intervals."""
    from matplotlib.figure import Figure

    curve = shares(lens)
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    ax = figure.subplots()
    ax.errorbar(
        range(len(curve)),
        [share for share, _ in curve.values()],
        [half for _, half in curve.values()],
        marker="o",
    )
    over = [i for i, d in enumerate(lens.diagnostics) if not d.ok]
    if over:
        ax.plot(over, [1 - lens.diagnostics[i].kept for i in over], "rx", ms=12, label="over the margin")
        ax.legend(frameon=False)
    ax.set_xticks(range(len(curve)), [site_name(site) for site in curve], rotation=45, ha="right")
    ax.set_ylim(0, 1)
    ax.set_ylabel("share of tokens that can go")
    ax.set_title(f"Knowledge curve over {lens.over}, margin {lens.settings.margin} nats")
    ax.spines[["top", "right"]].set_visible(False)
    return figure
