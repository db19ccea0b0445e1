"""The question answering experiment as results.json and results.md, with the paper's claims beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from . import figures as squad_figures

FIGURES = ("figure2", "figure7", "figure8a", "figure8b", "curves", "figure14", "figure15a", "figure15b")


def write(out: Path, model: str, found: Mapping[str, Found], margins: Sequence[float], command: str) -> None:
    """Write what the parts that are done have to say; the last margin is the paper's."""
    measured = gathered(found, margins)
    results = {model: measured, "command": command, "commits": commits_of(found.values())}
    draw(out, measured)
    write_results(out, results, [*summary(model, results), *figure_lines(out, FIGURES)])


def gathered(found: Mapping[str, Found], margins: Sequence[float]) -> dict[str, Any]:
    """What was found for each kind of mask, about the fits, and for Figure 2."""
    results: dict[str, Any] = {over: one for over in OVERS if (one := _of_masks(found, over, margins))}
    lenses = {n.removeprefix("lens/").replace("/", "-"): p for n, p in found.items() if n.startswith("lens/")}
    results |= {"lenses": lenses} if lenses else {}
    return results | ({"figure2": found["figures"]} if "figures" in found else {})


def _of_masks(found: Mapping[str, Found], over: str, margins: Sequence[float]) -> dict[str, Any]:
    """The sites at the paper's margin, and under "margins" at every one; groups, parts of speech and cost."""
    by_margin = {str(m): part for m in margins if (part := found.get(f"sites/{over}/{m}"))}
    one: dict[str, Any] = dict(by_margin.get(str(margins[-1]), {}))
    one |= {"margins": by_margin} if by_margin else {}
    for kind, field in (("groups", "groups"), ("speech", "tables"), ("kept", "ratio")):
        if f"{kind}/{over}" in found:
            one[kind] = found[f"{kind}/{over}"][field]
    return one


def draw(out: Path, found: Found) -> None:
    """Figures 7 and 14 and the curves; those of the examples are drawn when these are explained."""
    drawers = {
        "groups": squad_figures.draw_groups,
        "speech": squad_figures.draw_parts_of_speech,
        "margins": squad_figures.draw_curves,
    }
    for field, drawer in drawers.items():
        there = {over: found[over][field] for over in OVERS if field in found.get(over, {})}
        if there and can_draw():
            drawer(out, there)


def summary(model: str, results: Found) -> list[str]:
    """The results for people."""
    found = results[model]
    lines = [f"# DiffMask on question answering: {model}", "", made_by(results), ""]
    lines += _findings(found)
    for over in OVERS:
        for margin, measured in found.get(over, {}).get("margins", {}).items():
            lines += _sites(over, margin, measured)
    for over in OVERS:
        lines += _groups(over, found.get(over, {}))
    for over in OVERS:
        lines += _speech(over, found.get(over, {}))
    return lines + fits_lines(found.get("lenses", {}))


class Claim(NamedTuple):
    """Something the paper says of BERT-large, and how to look for it here."""

    paper: str
    needs: tuple[tuple[str, str], ...]
    """(over, what) that must have been measured"""
    judge: Callable[[Found], tuple[str, bool]]
    """what was found, and whether the claim holds"""


def _deepest(found: Found) -> tuple[str, bool]:
    last = found["inputs"]["sites"][-1]
    holds = last["masked"] > 0.95 and last["spans_kept"] > 0.90
    return f"{last['masked']:.1%} masked, {last['spans_kept']:.1%} of spans kept at the deepest site", holds


def _questions_longer(over: str) -> Callable[[Found], tuple[str, bool]]:
    def judge(found: Found) -> tuple[str, bool]:
        groups = found[over]["groups"]
        question, passage = (_mean(groups[name]["by_site"]) for name in ("question", "passage"))
        return f"mean over sites: question {question:.2f}, passage {passage:.2f}", question > passage

    return judge


def _wrong_answers(found: Found) -> tuple[str, bool]:
    groups = found["inputs"]["groups"]
    wrong, gold = (_mean(groups[name]["by_site"]) for name in ("gold_ends_wrong", "gold_ends"))
    last, passage = groups["gold_ends_wrong"]["by_site"][-1], groups["passage"]["by_site"][-1]
    said = f"{wrong:.2f} (right or wrong {gold:.2f}); at the deepest site {last:.2f}, passage {passage:.2f}"
    return said, last > 2 * passage


def _incremental(found: Found) -> tuple[str, bool]:
    masked = [site["masked"] for site in found["states"]["sites"]]
    late = masked[len(masked) * 3 // 4 :]
    said = ", ".join(f"{m:.0%}" for m in masked)
    return f"masked at each site: {said}", min(late) > 0.5 and late[0] > masked[0]


def _separators(found: Found) -> tuple[str, bool]:
    tables = found["states"]["speech"]
    name = next(iter(n for n in tables["passage"]["groups"] if n in ("</s>", "[SEP]")), None)
    if name is None:
        return "no separator token", False
    kept = tables["passage"]["groups"][name]["by_site"]
    return f"kept at each site: {', '.join(f'{k:.2f}' for k in kept)}", min(kept[:-1]) > 0.9


def _punctuation(found: Found) -> tuple[str, bool]:
    said, holds = [], True
    for part, tables in found["inputs"]["speech"].items():
        words = {n: g["mean"] for n, g in tables["groups"].items() if n.isupper() and n.isalpha()}
        order = sorted(words, key=words.__getitem__, reverse=True)
        said.append(f"{part}: {', '.join(f'{n} {words[n]:.1f}' for n in order[:4])} ... {order[-1]}")
        holds &= order[0] == "PUNCT"
    return "; ".join(said), holds


def _small_words(found: Found) -> tuple[str, bool]:
    groups = found["inputs"]["speech"]["passage"]["groups"]
    names = [n for n in ("ADP", "CCONJ", "PROPN", "NOUN") if n in groups]
    said = ", ".join(f"{n} {groups[n]['mean']:.1f}" for n in names)
    small = [groups[n]["mean"] for n in ("ADP", "CCONJ") if n in groups]
    large = [groups[n]["mean"] for n in ("PROPN",) if n in groups]
    return f"layers in the passage: {said}", bool(small and large) and max(small) < min(large)


def _erasure(found: Found) -> tuple[str, bool]:
    """Erasure keeps the answer and little of the question, DiffMask much more."""
    scores, answer = found["figure2"]["scores"], found["figure2"]["answer"].lower().split()
    tokens = scores["erasure"]["tokens"]
    end = tokens.index("?") if "?" in tokens else len(tokens) // 3
    kept = [t for t, score in zip(tokens, scores["erasure"]["scores"], strict=True) if score > 0.5]
    share = {name: _mean(scores[name]["scores"][1:end]) for name in ("erasure", "inputs", "free")}
    said = (
        f"erasure keeps {' '.join(kept)}; mean score of the question's tokens: "
        f"erasure {share['erasure']:.2f}, without amortisation {share['free']:.2f}, "
        f"DiffMask {share['inputs']:.2f}"
    )
    return said, any(t.lower() in answer for t in kept) and share["erasure"] < share["inputs"] / 2


CLAIMS = (
    Claim("In higher layers > 95% of tokens are masked and > 90% of predictions kept", (("inputs", "sites"),),
          _deepest),
    Claim("Question tokens are masked by higher layers than passage tokens (7a)", (("inputs", "groups"),),
          _questions_longer("inputs")),
    Claim("The same for hidden states (7b)", (("states", "groups"),), _questions_longer("states")),
    Claim("Where the model is wrong, gold answers are still kept about 60% of the time",
          (("inputs", "groups"),), _wrong_answers),
    Claim("Pruning of states grows with depth; late, more than half can go", (("states", "sites"),),
          _incremental),
    Claim("States of separator tokens are always kept except in the last layer", (("states", "speech"),),
          _separators),
    Claim("Punctuation is the most important part of speech (14)", (("inputs", "speech"),), _punctuation),
    Claim("Conjunctions and adpositions go first, proper nouns last (14)", (("inputs", "speech"),),
          _small_words),
    Claim("Erasure singles out the answer and drops the question; DiffMask keeps it (2)",
          (("figure2", "scores"),), _erasure),
)  # fmt: skip


def _findings(found: Found) -> list[str]:
    rows = []
    for claim in CLAIMS:
        if all(what in found.get(over, {}) for over, what in claim.needs):
            said, holds = claim.judge(found)
            rows.append([claim.paper, said, "holds" if holds else "does not hold"])
    if not rows:
        return []
    return ["## The paper's claims on this model", "", *table(["paper (BERT-large)", "here", ""], rows)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sites(over: str, margin: str, measured: Found) -> list[str]:
    before = measured["before"]
    names = ("masked", "spans_kept", "divergence", "em", "f1")
    rows = [
        [str(site["site"]), *(with_interval(site, name) for name in names), yes_or_no(site["ok"])]
        for site in measured["sites"]
    ]
    return [
        f"## Masks over {over}, margin {margin}: every site",
        "",
        f"{measured['questions']} questions of dev; the unmasked model has EM {before['em']:.3f} and F1 "
        f"{before['f1']:.3f}. By the gates alone: tokens with P(kept) > 0.5. 95% bootstrap intervals. "
        f"The lens: {one_line(measured['lens'])}.",
        "",
        *table(["site", "masked", "spans kept", "divergence", "EM", "F1", "within"], rows),
    ]


def _groups(over: str, found: Found) -> list[str]:
    if "groups" not in found:
        return []
    names = {"question": "question", "passage": "passage", "gold": "gold answer", "gold_wrong": "gold, wrong"}
    groups = {n: g for n, g in found["groups"].items() if n in names}
    sites = range(len(next(iter(groups.values()))["by_site"]))
    rows = [[str(i), *(f"{g['by_site'][i]:.3f}" for g in groups.values())] for i in sites]
    heads = ["site", *(f"{names[n]} ({g['questions']})" for n, g in groups.items())]
    return [f"## Figure 7: mean share kept, masks over {over} (questions)", "", *table(heads, rows)]


def _speech(over: str, found: Found) -> list[str]:
    lines = []
    for part, tables in found.get("speech", {}).items():
        title = f"Mean number of layers that keep it, masks over {over}, {part}, by part of speech:"
        lines += groups_lines(title, "part of speech", tables)
    return lines
