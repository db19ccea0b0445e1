"""What verification says of integrated gradients, random orders and reversed scores, and what it costs.

    python -m benchmarks verify

On 200 texts of AG News (test) and 200 of SST-2 (dev), with the reference checkpoints: not the first 200, on
which the test was designed. The cost is counted in tokens that the model was run on, divided by the tokens of
the whole texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

import masklens as ml
from masklens.evaluation.verify import Verifier
from masklens.model.masking import Masked
from masklens.records.verification import LEVEL, Verification

from .reference import Missing, agnews_test, checkpoint, sst2_dev

TEXTS = 200
CHECKPOINTS = {"minilm-sst2": lambda: sst2_dev()[0], "minilm-agnews": agnews_test}


def main() -> str:
    lines = [f"{TEXTS} texts each; an explanation passes at p <= {LEVEL}", ""]
    lines += [
        "| model | order | passes | needs | random orders need | forward passes a text |",
        "|---|---|---|---|---|---|",
    ]
    for name, read in CHECKPOINTS.items():
        try:
            folder, texts = checkpoint(name), read()[TEXTS : 2 * TEXTS]
        except Missing as reason:
            return f"skipped: {reason}"
        lines += measure(name, ml.Subject.from_pretrained(folder, truncate=True), texts)
    return "\n".join(lines)


def measure(name: str, subject: ml.Subject, texts: list[str]) -> Iterator[str]:
    """Rows: the share of texts that pass, and the forward passes a text."""
    found = ml.explain(subject, texts, "integrated_gradients")
    turned = [replace(a, scores=-a.scores) for a in found]
    verifier, whole = Verifier(subject, texts), int(subject.encode(texts).valid.sum())
    for order, work in {
        "integrated gradients, verified first": lambda: verifier.at_sites(found, [0])[0],
        "random, verified next": verifier.random,
        "reversed, verified next": lambda: verifier.at_sites(turned, [0])[0],
    }.items():
        with counted_tokens() as count:
            proofs = work()
        yield f"| {name} | {order} | {' | '.join(figures(proofs))} | {count[0] / whole:.2f} |"


def figures(proofs: list[Verification]) -> list[str]:
    names = ("passed", "share_needed", "random_share")
    return [f"{np.mean([getattr(proof, name) for proof in proofs]):.1%}" for name in names]


@contextmanager
def counted_tokens() -> Iterator[list[int]]:
    """The tokens of all views that are run inside, padding not counted."""
    count, run = [0], Masked.run

    def counted(self: Masked, *views: Any) -> Any:
        batch, output = run(self, *views)
        count[0] += int(batch.valid.sum())
        return batch, output

    Masked.run = counted  # type: ignore[method-assign]
    try:
        yield count
    finally:
        Masked.run = run  # type: ignore[method-assign]
