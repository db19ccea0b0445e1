"""Lenses on planted models beside what can be known at each layer.

For every task and seed: the truth (`truth.supervised`), a lens by the defaults, one by the published recipe,
and with `alone` one for each site alone with the same steps. All are measured on texts that nothing was
learned from.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from masklens import DiffMask, Subject
from masklens.diffmask.trainer import Settings
from masklens.files import whole
from masklens.reproduce.running import commit

from .planted import TASKS, Examples, build, generate
from .truth import AtSite, measure, supervised

MARGIN = 0.1
TRAIN, HELD = 4000, 500
LIMITS = {"lexical": 0.1, "mixed": 0.1, "count": 0.3, "two_hops": 0.3}
"""how far from the truth a good lens may be, on average over sites"""


def run(out: Path, tasks: Sequence[str], seeds: Sequence[int], alone: bool, steps: int | None = None) -> None:
    """Measure what is missing in OUT/results.json, one task and seed after the other, and write the page."""
    file = out / "results.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": {}}
    for task in tasks:
        for seed in seeds:
            name = f"{task}-{seed}"
            done = found["runs"].get(name)
            if done is None or (alone and "alone" not in done["forms"]):
                found["runs"][name] = study(task, seed, alone, steps)
                found |= {"settings": asdict(Settings(margin=MARGIN)), "commit": commit(), "texts": TRAIN}
                write(out, found)
    write(out, found)


def study(task: str, seed: int, alone: bool, steps: int | None) -> dict[str, Any]:
    """One planted model: what each form drops at each site."""
    subject, accuracy = build(task, seed)
    train, validation, test = (
        generate(task, count, 3 * seed + part) for part, count in enumerate((TRAIN, HELD, HELD), 11)
    )
    how: dict[str, Any] = {} if steps is None else {"steps": steps}
    started = time.perf_counter()
    forms = {"truth": measure(supervised(subject, train, validation, MARGIN, seed), subject, test)}
    for recipe in ("default", "published"):
        forms[recipe] = _lens(subject, train, validation, test, seed, recipe=recipe, **how)
    if alone:
        forms["alone"] = [
            _lens(subject, train, validation, test, seed, sites=[site], **how)[0] for site in subject.sites
        ]
    return {
        "accuracy": accuracy,
        "seconds": round(time.perf_counter() - started),
        "forms": {name: [row._asdict() for row in rows] for name, rows in forms.items()},
        "distance": {name: distance(rows, forms["truth"]) for name, rows in forms.items() if name != "truth"},
    }


def _lens(
    subject: Subject, train: Examples, validation: Examples, test: Examples, seed: int, **how: Any
) -> list[AtSite]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sites over their margin are in the table
        lens = DiffMask.fit(
            subject,
            train.texts,
            "inputs",
            MARGIN,
            seed,
            held_out=test.texts,
            validation=validation.texts,
            **how,
        )
    return measure(lens.probe, subject, test)


def distance(rows: Sequence[AtSite], truth: Sequence[AtSite]) -> float:
    """The mean over sites of the distance between recalls."""
    return sum(abs(a.recall - b.recall) for a, b in zip(rows, truth, strict=True)) / len(rows)


def write(out: Path, found: dict[str, Any]) -> None:
    with whole(out / "results.json") as part:
        part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    with whole(out / "results.md") as part:
        part.write_text(page(found), encoding="utf-8")
    draw(out / "emergence.png", found["runs"])


def page(found: dict[str, Any]) -> str:
    """The results for people."""
    rows = []
    for name, run in found["runs"].items():
        for form, sites in run["forms"].items():
            recall = " ".join(f"{site['recall']:.2f}" for site in sites)
            false = max(site["false"] for site in sites)
            off = f"{run['distance'][form]:.2f}" if form in run["distance"] else ""
            over = sum(site["divergence"] > MARGIN for site in sites)
            rows.append(f"| {name} | {form} | {recall} | {off} | {false:.1%} | {over} |")
    table = "\n".join(rows)
    return f"""# Planted emergence

Small transformers whose relevant words are known, read by lenses over inputs (margin {MARGIN} nats). A word
may be dropped at a layer only where that layer knows that it is irrelevant: at the words (lexical), after
attention (count), after two attention steps (two_hops), or half and half (mixed). `truth` is a probe that was
told which words are relevant. All figures are of {HELD} texts that nothing was learned from.

- recall: share of the irrelevant words that are dropped, site by site (0 = words, then the input and the
  output of each block)
- distance: mean over sites of the distance to the truth's recall
- false: the largest share of relevant words that is dropped at a site
- over: sites whose divergence is over the margin

| model | form | recall | distance | false | over |
|---|---|---|---|---|---|
{table}

Commit {found.get("commit", "unknown")}; `python -m experiments emergence`; settings {found.get("settings")}.

![recall by site](emergence.png)
"""


def draw(file: Path, runs: dict[str, Any]) -> None:
    """One panel a task: the truth's recall and that of the lenses, over sites."""
    from matplotlib.figure import Figure

    looks = {"truth": ("black", "-"), "default": ("#2166ac", "-"), "published": ("#d95f02", "--")}
    tasks = [task for task in TASKS if any(name.startswith(task) for name in runs)]
    figure = Figure(figsize=(3.2 * len(tasks), 3.2), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for ax, task in zip(axes, tasks, strict=True):
        for name, run in runs.items():
            for form, (colour, line) in looks.items():
                if name.startswith(task):
                    recalls = [site["recall"] for site in run["forms"][form]]
                    ax.plot(recalls, line, color=colour, alpha=0.8, marker=".", label=form)
        ax.set_title(task.replace("_", " "))
        ax.set_xlabel("site")
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    axes[0].legend(named.values(), named.keys(), frameon=False)
    axes[0].set_ylabel("irrelevant words dropped")
    with whole(file) as part:
        figure.savefig(part, format="png", dpi=130)
