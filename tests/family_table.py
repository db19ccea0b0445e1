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


CLASS = re.compile(r"\b\w+(ForCausalLM|ForMaskedLM|ForConditionalGeneration|WithLMHead|LMHeadModel)\b")
MORE = "## More language models"
MORE_HEAD = f"""{MORE}

The same checks on further families of `transformers`, each with its language-model head only, and with one
method for each way of using a model. A number stands for the reason that is given; the reasons are listed
below.
"""


def write(found: list[tuple[str, Any]], language: list[tuple[str, Any]]) -> None:
    """Write the page. A half of it whose tests did not all run is left as it is."""
    old, _, old_more = PAGE.read_text(encoding="utf-8").partition(MORE)
    first, second = _tasks_page(found) or old, _language_page(language) or MORE + old_more
    PAGE.write_text(first.rstrip() + "\n\n" + second.rstrip() + "\n", encoding="utf-8")


def _tasks_page(found: list[tuple[str, Any]]) -> str:
    cells: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for outcome, (method, family, head, reason) in found:
        cells[family, head].append((method, outcome, reason))
    methods = {method for cell in cells.values() for method, _, _ in cell}
    if set(cells) != set(tiny.cases()) or any(len(cell) != len(methods) for cell in cells.values()):
        print("\nthe contract tests did not all run; their part of docs/families.md is left as it is")
        return ""
    return "\n".join([HEAD, *_table(cells), "", *_reasons(cells)])


def _language_page(found: list[tuple[str, Any]]) -> str:
    """A table of families by methods: "ok", "fails", or the number of the reason why not."""
    cells = {(family, method): (outcome, reason) for outcome, (method, family, reason) in found}
    methods = sorted({method for _, method in cells})
    if not methods or len(cells) != len(methods) * len(tiny.LANGUAGE_MODELS):
        print("\nnot all tests of language models ran; their part of docs/families.md is left as it is")
        return ""
    reasons: dict[str, int] = {}

    def cell(family: str, method: str) -> str:
        outcome, reason = cells[family, method]
        if outcome != "passed":
            return "fails"
        said = CLASS.sub("the model", reason)
        return str(reasons.setdefault(said, len(reasons) + 1)) if said else "ok"

    lines = ["| family | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for family in tiny.LANGUAGE_MODELS:
        lines.append(f"| {family} | " + " | ".join(cell(family, method) for method in methods) + " |")
    return "\n".join([MORE_HEAD, *lines, "", *(f"{number}. {said}" for said, number in reasons.items())])


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
