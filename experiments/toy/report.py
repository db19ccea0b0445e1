"""The toy experiment as results.json and results.md, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..parts import Found
from ..results import commits_of, figure_lines, made_by, one_line, table, write_results, yes_or_no
from .truth import OPTIONS

PAPER = {
    "erasure": (None, 0.27),
    "integrated_gradients": (1.32, 0.27),
    "information_bottleneck": (1.12, 0.18),
    "guan": (0.88, 0.24),
    "diffmask": (0.01, 0.00),
}
"""D_KL and D_JS of the paper's Table 1"""
SOLVED, SOLVED_3E = 0.004, 0.05
"""the D_KL up to which a seed counts as solved: of Table 1, and of both of Figure 3e"""


def write(out: Path, seeds: Sequence[Found], detail: Found, command: str) -> dict[str, Any]:
    """Write the results; the first seed is shown in detail."""
    results = gathered(seeds, detail) | {"command": command, "commits": commits_of([*seeds, detail])}
    write_results(out, results, [*page(results), *figure_lines(out, ("figure3", "figure11"))])
    return results


def gathered(seeds: Sequence[Found], detail: Found) -> dict[str, Any]:
    """The results file: the first seed's row and its details; "seeds" has a row for each."""
    rows = [_row(one) for one in seeds]
    settings = {"examples": seeds[0]["settings"]["examples"], "lenses": seeds[0]["lenses"], **OPTIONS}
    return {
        **rows[0],
        "table1": {**detail["table1"], "diffmask": rows[0]["diffmask"]},
        "linear_classifier": detail["linear_classifier"],
        "seeds": rows,
        "settings": settings,
    }


def _row(found: Found) -> dict[str, Any]:
    """What one seed found, and whether it is solved."""
    row = {name: value for name, value in found.items() if name not in ("settings", "lenses")}
    return row | {
        "table1_solved": at_most(SOLVED, row["diffmask"]),
        "figure3e_solved": at_most(SOLVED_3E, *row["figure3e"].values()),
    }


def at_most(largest: float, *found: Mapping[str, float | None]) -> bool:
    """Whether every D_KL is; None is infinite."""
    return all(one["kl"] is not None and one["kl"] <= largest for one in found)


def shown(value: float | None, digits: int = 4) -> str:
    return "inf" if value is None else f"{value:.{digits}f}"


def seeds_table(seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a seed."""
    heads = ["seed", "accuracy", "D_KL", "D_JS", "3e, from embeddings", "3e, from states"]
    heads += [f"D_KL ≤ {SOLVED}", f"3e ≤ {SOLVED_3E}"]
    rows = [
        [
            str(one["seed"]),
            f"{one['accuracy']:.1%}",
            *(shown(one["diffmask"][name]) for name in ("kl", "js")),
            *(shown(entry["kl"]) for entry in one["figure3e"].values()),
            *(yes_or_no(one[f"{what}_solved"]) for what in ("table1", "figure3e")),
        ]
        for one in seeds
    ]
    return table(heads, rows)


def page(results: Found) -> list[str]:
    """results.md"""
    return [*_about_seeds(results), *_table_1(results), *_figure_3e(results)]


def _about_seeds(results: Found) -> list[str]:
    text = f"""# The toy task of DiffMask

{made_by(results)} All figures are of examples that no lens has seen. Lenses:
{one_line(results["settings"]["lenses"]["states"])}.

## DiffMask, every seed

Each seed has its own data, model and lenses. D_KL and D_JS: attribution to hidden states (Table 1); 3e: the
D_KL of masks over the inputs (Figure 3e). All in nats.
"""
    return [text, *seeds_table(results["seeds"])]


def _table_1(results: Found) -> list[str]:
    heads = ["method", "D_KL", "D_JS", "paper D_KL", "paper D_JS"]
    rows = [[name, *map(shown, found.values()), *_paper(name)] for name, found in results["table1"].items()]
    linear = results["linear_classifier"]
    before = f"""The rest of this page is of seed {results["seed"]}. Accuracy of its model on the test set:
{results["accuracy"]:.1%} (paper: over 99%).

## Table 1: attribution to hidden states, divergence from the ground truth in nats
"""
    after = f"""Erasure's attribution leaves out digits that were counted, so its D_KL is infinite.
It is searched here, at the hidden states and with a zero baseline, and averaged over all optima; the
reference code wrote one optimum down. `diffmask_per_text` is DiffMask without amortisation: like erasure it
finds masks that happen to work for a text, not what the model knows.

A linear classifier tells query digits from others in the 2-d states with accuracy {linear["two_way"]:.4f}
(one line), and first, second and no query digit apart with {linear["three_way"]:.4f}. This is why the even
attribution to query digits is the ground truth.
"""
    return [before, *table(heads, rows), after]


def _paper(name: str) -> list[str]:
    return ["-", "-"] if name not in PAPER else [shown(value, 2) for value in PAPER[name]]


def _figure_3e(results: Found) -> list[str]:
    found, margin = results["figure3e"], results["settings"]["lenses"]["inputs"]["margin"]
    text = f"""## Figure 3e: masks over the inputs (margin {margin})

- decided from the embeddings, against all digits evenly: D_KL {shown(found["conditioned_on_input"]["kl"])}
- decided from the hidden states, against the query's digits evenly: D_KL
  {shown(found["conditioned_on_hidden"]["kl"])}
"""
    return [text]
