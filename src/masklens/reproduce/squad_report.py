"""The pieces of squad.py as results.json and results.md, with the paper's claims beside what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..files import whole
from .running import write_json
from .sst_report import groups_table, made_by, table
from .study import commits_of, described, seconds_of

Found = Mapping[str, Any]
OVERS = ("inputs", "states")
PICTURES = ("figure2", "figure7", "figure8a", "figure8b", "curves", "figure14", "figure15a", "figure15b")


def write(out: Path, parts: Path, model: str, command: str) -> None:
    """Write what can be said from the pieces that are there."""
    found = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(parts.glob("*.json"))}
    results = gathered(found, model) | {"command": command, "commits": commits_of(found.values())}
    write_json(out / "results.json", results)
    draw(out, results[model])
    with whole(out / "results.md") as part:
        part.write_text("\n".join(summary(out, model, results)) + "\n", encoding="utf-8")


def gathered(found: Mapping[str, Found], model: str) -> dict[str, Any]:
    """The results file: for each form of mask the sites at every margin, and the groups of Figure 7."""
    from .squad import MARGIN, MARGINS

    results: dict[str, Any] = {}
    for over in OVERS:
        margins = {str(m): p for m in MARGINS if (p := found.get(f"sites-{over}-{m}"))}
        one: dict[str, Any] = {}
        if str(MARGIN) in margins:
            one |= margins[str(MARGIN)]
        if margins:
            one["margins"] = margins
        for part, field in (("groups", "groups"), ("speech", "tables"), ("kept", "ratio")):
            if f"{part}-{over}" in found:
                one[part] = found[f"{part}-{over}"][field]
        results |= {over: one} if one else {}
    lenses = {name.removeprefix("lens-"): p for name, p in found.items() if name.startswith("lens-")}
    results |= {"lenses": lenses} if lenses else {}
    results |= {"figure2": found["figures"]} if "figures" in found else {}
    return {model: results}


def draw(out: Path, found: Found) -> None:
    """Figures 7 and 14 and the curves; those of the examples are drawn when these are explained."""
    from . import squad_figures

    groups = {over: found[over]["groups"] for over in OVERS if "groups" in found.get(over, {})}
    speech = {over: found[over]["speech"] for over in OVERS if "speech" in found.get(over, {})}
    margins = {over: found[over]["margins"] for over in OVERS if "margins" in found.get(over, {})}
    if groups:
        squad_figures.draw_groups(out, groups)
    if speech:
        squad_figures.draw_parts_of_speech(out, speech)
    if margins:
        squad_figures.draw_curves(out, margins)


def summary(out: Path, model: str, results: Found) -> list[str]:
    """The results for people."""
    found = results[model]
    lines = [f"# DiffMask on question answering: {model}", "", made_by(results), ""]
    lines += _findings(found)
    for over in OVERS:
        for margin, piece in found.get(over, {}).get("margins", {}).items():
            lines += _sites(over, margin, piece)
    for over in OVERS:
        lines += _groups(over, found.get(over, {}))
    for over in OVERS:
        lines += _speech(over, found.get(over, {}))
    lines += _fits(found.get("lenses", {}))
    lines += [f"![{name}]({name}.png)\n" for name in PICTURES if (out / f"{name}.png").exists()]
    if (out / "examples.html").exists():
        lines += ["All examples, to look into: [examples.html](examples.html)"]
    return lines


class Claim(NamedTuple):
    """Something the paper says of BERT-large, and how to look for it here."""

    paper: str
    needs: tuple[tuple[str, str], ...]
    """(over, part) that must have been measured"""
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
        if all(part in found.get(over, {}) for over, part in claim.needs):
            said, holds = claim.judge(found)
            rows.append([claim.paper, said, "holds" if holds else "does not hold"])
    if not rows:
        return []
    return ["## The paper's claims on this model", "", *table(["paper (BERT-large)", "here", ""], rows)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sites(over: str, margin: str, piece: Found) -> list[str]:
    before = piece["before"]
    names = ("masked", "spans_kept", "divergence", "em", "f1")
    rows = [
        [str(site["site"]), *(_cell(site, name) for name in names), "yes" if site["ok"] else "NO"]
        for site in piece["sites"]
    ]
    return [
        f"## Masks over {over}, margin {margin}: every site",
        "",
        f"{piece['questions']} questions of dev; the unmasked model has EM {before['em']:.3f} and F1 "
        f"{before['f1']:.3f}. By the gates alone: tokens with P(kept) > 0.5. 95% bootstrap intervals. "
        f"The lens: {described(piece['lens'])}.",
        "",
        *table(["site", "masked", "spans kept", "divergence", "EM", "F1", "within"], rows),
    ]


def _cell(site: Found, name: str) -> str:
    low, high = site[f"{name}_interval"]
    return f"{site[name]:.3f} [{low:.3f}, {high:.3f}]"


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
        lines += [f"Mean number of layers that keep it, masks over {over}, {part}, by part of speech:", ""]
        lines += table(["part of speech", "tokens", "layers", "95% interval"], groups_table(tables))
    return lines


def _fits(lenses: Mapping[str, Found]) -> list[str]:
    rows = [
        [
            name,
            str(lens["texts"]),
            seconds_of(lens),
            lens["settings"]["device"],
            "-" if lens["peak_bytes"] is None else f"{lens['peak_bytes'] / 1e9:.1f}",
            f"{max(d['divergence'] for d in lens['diagnostics']):.3f}",
            f"{1 - lens['diagnostics'][-1]['kept']:.1%}",
        ]
        for name, lens in lenses.items()
    ]
    heads = ["lens", "questions", "seconds", "device", "peak GB", "largest divergence", "masked, deepest"]
    return ["## Fits", "", *table(heads, rows)] if rows else []
