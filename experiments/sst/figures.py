"""Figures 4, 5, 6, 12 and 13 of DiffMask, as PNG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from masklens.attribution import Attribution
from masklens.diffmask.lens import DiffMask
from masklens.methods.explain import explain
from masklens.model.subject import Subject
from masklens.reports import bars, heatmap

from ..measures import corpus_statistics
from ..results import groups_of, save_figure
from .analysis import SCHULZ

EXAMPLE = "A fast , funny , highly enjoyable movie ."
SECOND = "It 's slow -- very , very slow ."
"""of the dev set; the paper's own second example is not in its text"""
METHODS: dict[str, dict[str, Any]] = {
    "attention": {},
    "information_bottleneck": SCHULZ,
    "guan": {"n_steps": 50, "lr": 0.1, "weight": 0.1},
    "integrated_gradients": {"n_steps": 50, "points": "linspace", "absolute": True},
}
"""the other methods of Figure 6 with the reference code's settings; Guan et al. as 1 / sigma, which is
positive as the others are"""
FREE: dict[str, Any] = {"steps": 300, "lr": 0.1}
"""masks of single texts (Figure 12 b and c)"""
NAMES = {
    "attention": "Attention",
    "information_bottleneck": "Schulz et al. (2020)",
    "guan": "Guan et al. (2019)",
    "integrated_gradients": "Integrated gradients",
    "inputs": "DiffMask, inputs",
    "states": "DiffMask, hidden states",
    "free_baseline": "Without amortisation",
    "free": "Without amortisation, zero baseline",
}
LEFT, RIGHT, TOP, BOTTOM = 1.0, 1.3, 0.4, 0.6
"""inches around a map: names of sites, labels that lean out, title, colour bar"""
FIGURE6 = ("attention", "information_bottleneck", "guan", "integrated_gradients", "inputs", "states")
FIGURE12 = ("states", "free_baseline", "free")


def examples(
    subject: Subject, lenses: Mapping[str, DiffMask], train: Sequence[str], size: int, steps: int | None
) -> dict[str, list[Attribution]]:
    """Both examples explained in every way, by the name of the way."""
    texts = [EXAMPLE, SECOND]
    corpus = corpus_statistics(subject, train, size)
    found: dict[str, list[Attribution]] = {}
    for method, options in METHODS.items():
        more: dict[str, Any] = {"statistics": corpus} if method == "information_bottleneck" else {}
        sites = None if method == "attention" else "all"
        found[method] = explain(subject, texts, method, sites=sites, **options, **more)
    found |= {over: lens.explain(texts) for over, lens in lenses.items()}
    free = FREE if steps is None else FREE | {"steps": steps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that masks without a lens prune too much is what is shown
        for name, learn in (("free_baseline", True), ("free", False)):
            found[name] = explain(subject, texts, "diffmask", sites="all", learn_baseline=learn, **free)
    return found


def draw_examples(out: Path, found: Mapping[str, Sequence[Attribution]]) -> None:
    """Figures 6, 12 and 13."""
    one, two = ({name: group[i] for name, group in found.items()} for i in (0, 1))
    save_figure(out, "figure6", maps({name: one[name] for name in FIGURE6}))
    save_figure(out, "figure13", maps({name: two[name] for name in FIGURE6}))
    save_figure(out, "figure12", maps({name: one[name] for name in FIGURE12}))


def maps(found: Mapping[str, Attribution], columns: int = 3) -> Any:
    """Heat maps side by side, lettered. Keep probabilities have one scale; other scores are shares of the
    site's largest."""
    from matplotlib.figure import Figure

    across = LEFT + 0.26 * max(len(a.tokens) for a in found.values()) + RIGHT
    down = TOP + 1.0 + 0.22 * max(len(a.sites) for a in found.values()) + BOTTOM
    width, height = columns * across, -(-len(found) // columns) * down
    figure = Figure(figsize=(width, height))
    for i, (name, attribution) in enumerate(found.items()):
        line, column = divmod(i, columns)
        left, bottom = column * across + LEFT, height - (line + 1) * down + BOTTOM
        size = (across - LEFT - RIGHT) / width, (down - TOP - BOTTOM) / height
        ax = heatmap.plot(attribution, figure.add_axes((left / width, bottom / height, *size)))
        ax.set_title(f"({'abcdefgh'[i]}) {NAMES[name]}", loc="left", fontsize=10)
    return figure


def draw_groups(out: Path, name: str, field: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Figure 4 or 5: the mean number of layers by a kind of token, one panel a lens."""
    from matplotlib.figure import Figure

    rows = max(len(part[field]["groups"]) for part in found.values())
    figure = Figure(figsize=(5.2 * len(found), 1.2 + 0.28 * rows), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for ax, letter, (over, part) in zip(axes, "ab", found.items(), strict=False):
        sites = len(part[field]["sites"])
        title = f"({letter}) {'input tokens' if over == 'inputs' else 'hidden states'}, {part['model']}"
        bars.draw(groups_of(part[field]), ax, title, f"mean number of layers that keep it (of {sites})")
        ax.set_xlim(0, sites)
    save_figure(out, name, figure)
