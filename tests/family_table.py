"""docs/families.md from what the contract tests found."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import tiny

PAGE = Path(__file__).parents[1] / "docs" / "families.md"

TASKS = {
    "classification": "one label",
    "multi_label": "several labels",
    "regression": "number",
    "pairs": "text pair",
    "qa": "question answering",
    "tagging": "token labels",
    "mlm": "masked LM",
    "causal": "causal LM",
    "seq2seq": "seq2seq LM",
}

HEAD = """# Model families and tasks

`make test-all` writes this page. The tests run every method on a tiny random model of every family, with
each of its heads. A cell says for how many methods these checks hold:

- Scores are finite, one for each token and site.
- Scores do not depend on padding, on the batch or on repetition.
- The model is left unchanged, also after an error.

Where a method does not apply, it says why. The messages are listed below the table. An empty cell means that
the family has no such head.
"""


def write(found: list[tuple[str, Any]]) -> None:
    """Write the page; an incomplete run writes nothing."""
    cells: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for outcome, (method, family, head, reason) in found:
        cells[family, head].append((method, outcome, reason))
    methods = {method for cell in cells.values() for method, _, _ in cell}
    if set(cells) != set(tiny.cases()) or any(len(cell) != len(methods) for cell in cells.values()):
        print("\nthe contract tests did not all run; docs/families.md is left as it is")
        return
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([HEAD, *_table(cells), "", *_reasons(cells), ""]), encoding="utf-8")


def _table(cells: dict[tuple[str, str], list[tuple[str, str, str]]]) -> list[str]:
    lines = ["| family | " + " | ".join(TASKS.values()) + " |", "|---" * (len(TASKS) + 1) + "|"]
    for family in tiny.FAMILIES:
        row = [_cell(cells[family, head]) if (family, head) in cells else "" for head in TASKS]
        lines.append(f"| {family} | " + " | ".join(row) + " |")
    return lines


def _cell(results: list[tuple[str, str, str]]) -> str:
    broken = sorted(method for method, outcome, _ in results if outcome != "passed")
    if broken:
        return "fails: " + ", ".join(broken)
    held = sum(not reason for _, _, reason in results)
    return f"ok ({held} of {len(results)})" if held < len(results) else f"ok ({held})"


def _reasons(cells: dict[tuple[str, str], list[tuple[str, str, str]]]) -> list[str]:
    """What methods say where they do not apply, with the places where they say it."""
    places: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (family, head), results in cells.items():
        for method, outcome, reason in results:
            if outcome == "passed" and reason:
                said = re.sub(rf"\b{type_name(family)}\w*", "the model", reason)
                places[method, said][family].append(head)
    if not places:
        return []
    lines = ["## Where a method does not apply", ""]
    for (method, reason), where in sorted(places.items()):
        lines.append(f'- `{method}` on {"; ".join(_place(*one) for one in where.items())}: "{reason}"')
    return lines


def _place(family: str, heads: list[str]) -> str:
    if len(heads) == len(tiny.FAMILIES[family].heads):
        return family
    return f"{family} ({', '.join(TASKS[head] for head in heads)})"


def type_name(family: str) -> str:
    """How the names of a family's classes begin."""
    return tiny.FAMILIES[family].config.removesuffix("Config")
