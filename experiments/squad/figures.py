"""Figures 2, 7, 8, 14 and 15 of DiffMask, on question answering, as PNG."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from masklens.attribution import Attribution
from masklens.diffmask.lens import DiffMask
from masklens.methods.explain import explain
from masklens.model.subject import Subject
from masklens.reports import bars, heatmap

from ..measures import corpus_statistics
from ..results import groups_of, save_figure
from .questions import Question

EXAMPLE = "Where did the Broncos practice for the Super Bowl?"
LONGEST_EXAMPLE = 60
"""tokens of an example of Figure 15"""
OTHERS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"n_steps": 500, "points": "linspace", "absolute": True},
    "information_bottleneck": {"n_steps": 500, "lr": 0.1, "weight": 10.0},
    "guan": {"n_steps": 500, "lr": 0.1, "weight": 5.0},
    "erasure": {"budget": 800_000},
}
"""the other methods of Figure 2 with the reference code's settings, at the word embeddings"""
FREE: dict[str, Any] = {"steps": 500, "lr": 0.1, "margin": 1.0}
NAMES = {
    "integrated_gradients": "(a) Integrated gradients",
    "information_bottleneck": "(b) Schulz et al. (2020)",
    "guan": "(c) Guan et al. (2019)",
    "erasure": "(d) Erasure search",
    "inputs": "(e) DiffMask, mean over layers",
    "free": "(f) DiffMask without amortisation",
}
CURVES = {
    "question": ("question", "#0072B2", "-"),
    "passage": ("passage", "#D55E00", "-"),
    "gold": ("gold answer", "#009E73", "-"),
    "gold_wrong": ("gold answer, model wrong", "#009E73", "--"),
}
MARGIN_COLOURS = {"0.2": "#0072B2", "0.5": "#D55E00", "1.0": "#009E73"}


def example(questions: Sequence[Question]) -> Question:
    """The paper's example of Figures 2 and 8; of a part of the set that lacks it, the first."""
    return next((q for q in questions if q.pair[0] == EXAMPLE), questions[0])


def further_examples(subject: Subject, questions: Sequence[Question]) -> list[Question]:
    """Two short ones for Figure 15: the first two, of different passages."""
    found: dict[str, Question] = {}
    for q in questions:
        if len(subject.encode([q.pair]).tokens[0]) <= LONGEST_EXAMPLE and q.pair[0] != EXAMPLE:
            found.setdefault(q.pair[1], q)
        if len(found) == 2:
            break
    return list(found.values())


def compared(
    subject: Subject, lens: DiffMask, question: Question, train: Sequence[Question], quick: bool
) -> dict[str, Attribution]:
    """Figure 2: one question explained in every way, with one score per token."""
    corpus = corpus_statistics(subject, [q.pair for q in train], 32)
    found = {}
    for method, options in OTHERS.items():
        chosen = {**options, **(_quick(options) if quick else {})}
        if method == "information_bottleneck":
            chosen["statistics"] = corpus
        found[method] = explain(subject, [question.pair], method, sites=[0], **chosen)[0]
    whole = lens.explain([question.pair])[0]
    mean = whole.scores.mean(0, keepdims=True)
    found["inputs"] = replace(whole, sites=(0,), scores=mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that masks without a lens prune too much is what is shown
        free = {**FREE, **(_quick(FREE) if quick else {})}
        found["free"] = explain(subject, [question.pair], "diffmask", sites=[0], **free)[0]
    return {name: found[name] for name in NAMES}


def _quick(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a run that only shows that it works."""
    few = {"n_steps": 5, "steps": 5, "budget": 2000}
    return {name: value for name, value in few.items() if name in options} | (
        {"beam": 4} if "budget" in options else {}
    )


def draw_compared(out: Path, found: Mapping[str, Attribution]) -> None:
    figure = heatmap.figure(list(found.values()))
    titles = [ax for ax in figure.axes if ax.get_title(loc="left") or ax.get_title()]
    for ax, name in zip(titles, found, strict=False):
        ax.set_title("")
        ax.set_title(NAMES[name], loc="left", fontsize=10)
    save_figure(out, "figure2", figure)


def draw_examples(
    out: Path, lenses: Mapping[str, DiffMask], first: Question, others: Sequence[Question]
) -> None:
    """Figures 8 (a: inputs, b: states) and 15 (two more examples)."""
    for letter, (over, lens) in zip("ab", lenses.items(), strict=True):
        found = [
            replace(a, method=f"DiffMask, {over}") for a in lens.explain([q.pair for q in (first, *others)])
        ]
        save_figure(out, f"figure8{letter}", heatmap.figure(found[:1]))
        if others:
            save_figure(out, f"figure15{letter}", heatmap.figure(found[1:]))


def draw_groups(out: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Figure 7: the share kept at each site, by group."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(found), 3.6), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for ax, letter, (over, groups) in zip(axes, "ab", found.items(), strict=False):
        for name, (label, colour, style) in CURVES.items():
            if name in groups:
                values = groups[name]["by_site"]
                ax.plot(range(len(values)), values, style, color=colour, label=label, marker="o", ms=3)
        ax.set_title(f"({letter}) {'input tokens' if over == 'inputs' else 'hidden states'}", fontsize=10)
        ax.set(xlabel="site", ylim=(0, 1.02))
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("mean share kept")
    axes[-1].legend(frameon=False, fontsize=8)
    save_figure(out, "figure7", figure)


def draw_parts_of_speech(out: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Figure 14: the number of layers that keep a token, question and passage apart."""
    from matplotlib.figure import Figure

    panels = [(over, part, table) for over, tables in found.items() for part, table in tables.items()]
    rows = max(len(table["groups"]) for _, _, table in panels)
    figure = Figure(figsize=(10.4, (1.2 + 0.26 * rows) * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 2, squeeze=False).ravel()
    for ax, (over, part, table) in zip(axes, panels, strict=True):
        sites = len(table["sites"])
        bars.draw(groups_of(table), ax, f"{over}: {part}", f"mean number of layers that keep it (of {sites})")
        ax.set_xlim(0, sites)
    save_figure(out, "figure14", figure)


def draw_curves(out: Path, sites: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Spans kept against tokens masked: one line a margin, one point a site."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(sites), 3.6), layout="constrained")
    axes = figure.subplots(1, len(sites), squeeze=False, sharey=True)[0]
    for ax, (over, margins) in zip(axes, sites.items(), strict=True):
        for margin, found in margins.items():
            rows = found["sites"]
            ax.plot(
                [r["masked"] for r in rows], [r["spans_kept"] for r in rows],
                "-o", ms=3, color=MARGIN_COLOURS.get(margin, "black"), label=f"margin {margin}",
            )  # fmt: skip
            ax.annotate(str(rows[-1]["site"]), (rows[-1]["masked"], rows[-1]["spans_kept"]), fontsize=7)
        ax.set(title=f"masks over {over}", xlabel="share of tokens masked", xlim=(0, 1), ylim=(0, 1.02))
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, fontsize=8, loc="lower left")
    axes[0].set_ylabel("share of predicted spans kept")
    save_figure(out, "curves", figure)
