"""What gates that read the whole text gain over gates that read their token alone, at the same share masked.

    python -m benchmarks.context MODEL_DIR DATA_DIR [SEED ...]

Lenses over inputs, fitted on 20,000 training sentences of SST and phrases of them, of up to 14 words, and
judged at the deepest site on sentences set aside that are as short. A line a threshold on P(kept): what it
masks and what that costs. About 10 minutes a fit of a 6-layer model on one core, two fits a seed.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from masklens import DiffMask, Subject
from masklens.reproduce.treebank import texts_to_fit_on

LONGEST, COUNT = 14, 20_000
THRESHOLDS = (0.2, 0.35, 0.5, 0.65, 0.8)
FIT: dict[str, Any] = {
    "steps": 1000,
    "batch_size": 64,
    "lr": 3e-3,
    "slack": 0.2,
    "evaluate_every": 500,
    "patience": 0,
    "keep_bytes": 8 * 10**9,
}


def main(model: Path, data: Path, seeds: list[int]) -> None:
    subject = Subject.from_pretrained(model, truncate=True)
    every = texts_to_fit_on(data, model.name.rpartition("-")[2])
    train, watched, judged = ([text for text in one if len(text.split()) <= LONGEST] for one in every)
    random.Random(1).shuffle(train)
    how = {**FIT, "held_out": judged, "validation": watched}
    for seed in seeds:
        for context in (False, True):
            lens = DiffMask.fit(subject, train[:COUNT], "inputs", seed=seed, context=context, **how)
            tell(lens, watched + judged, f"seed {seed}, context {context}")


def tell(lens: DiffMask, texts: list[str], name: str) -> None:
    """A line a threshold; shares are of the tokens of all texts."""
    found = lens.explain(texts)
    tokens = np.array([len(a.tokens) for a in found])
    for keep in THRESHOLDS:
        proofs = lens.verify(found, keep)
        masked = np.average([p.share_removed for p in proofs], weights=tokens)
        divergence = np.mean([p.divergence for p in proofs])
        kept = np.mean([p.prediction_kept for p in proofs])
        print(
            f"{name}, P > {keep}: {masked:.1%} masked at {divergence:.4f} nats, {kept:.1%} agree", flush=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(seed) for seed in sys.argv[3:]] or [0, 1])
