"""How far lenses of two seeds differ, and what their masks cost, with more and more members.

    python -m benchmarks.members MODEL_DIR DATA_DIR inputs|states [MEMBERS ...]

On the training sentences of SST of 5 to 14 words: seven in eight to learn from, the others to judge on. Every
fit has as many steps of as many texts, whatever its members, so that all cost the same. About 8 minutes a fit
of a 6-layer model on one core, two fits a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from masklens import DiffMask, Subject
from masklens.reproduce.sst_faithfulness import mask_texts
from masklens.reproduce.sst_stability import stability
from masklens.reproduce.treebank import read_split

SHORTEST, LONGEST, EVERY = 5, 14, 8
FIT = {"steps": 600, "batch_size": 64, "lr": 2e-3, "slack": 0.4, "evaluate_every": 300, "patience": 0}


def main(model: Path, data: Path, over: str, members: list[int]) -> None:
    subject = Subject.from_pretrained(model, truncate=True)
    every = read_split(data, model.name.rpartition("-")[2], "train").texts
    texts = [text for text in every if SHORTEST <= len(text.split()) <= LONGEST]
    train = [text for i, text in enumerate(texts) if i % EVERY]
    judged = texts[::EVERY]
    for count in members:
        how = {**FIT, "members": count, "validation": judged[::2], "held_out": judged[1::2]}
        lenses = [DiffMask.fit(subject, train, over, seed=seed, **how) for seed in (0, 1)]
        apart = stability([lens.explain(judged) for lens in lenses])["deviation"]
        costs = "; ".join(cost(lens, judged) for lens in lenses)
        print(f"{count} members: {costs}; deviation {apart:.4f}", flush=True)


def cost(lens: DiffMask, texts: list[str]) -> str:
    """At the deepest site, or the mean over sites for states."""
    masking = mask_texts(lens, texts)
    sites = [site.gates for site in masking.sites.values()][-1 if lens.over == "inputs" else 0 :]
    masked = 1 - np.mean([site.kept.sum() / masking.lengths.sum() for site in sites])
    divergence = np.mean([site.divergence.mean() for site in sites])
    kept = np.mean([(site.prediction == masking.prediction).mean() for site in sites])
    return f"{masked:.1%} masked at {divergence:.4f} nats, {kept:.1%} of the predictions kept"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], [int(n) for n in sys.argv[4:]] or [1, 4, 16])
