"""What greedy search keeps of texts of each predicted class, beside what a lens over inputs keeps.

    python -m benchmarks.greedy_masks MODEL_DIR DATA_DIR LENS_DIR [TEXTS]

On dev sentences of SST of 6 to 12 words, with the lens's baseline: single tokens are dropped, the one that
costs least first, while the output moves by at most 0.05 nats. Search has hindsight, and no class in mind:
where it keeps less of one class too, the model needs less.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from masklens import DiffMask, Subject
from masklens.methods.settling import judge_of, pruned
from masklens.reproduce.treebank import read_split

MARGIN, SHORTEST, LONGEST = 0.05, 6, 12


@torch.no_grad()
def main(model: Path, data: Path, folder: Path, count: int = 50) -> None:
    subject = Subject.from_pretrained(model, truncate=True)
    lens = DiffMask.from_pretrained(folder, subject)
    every = read_split(data, model.name.rpartition("-")[2], "dev").texts
    texts = [text for text in every if SHORTEST <= len(text.split()) <= LONGEST]
    batch = subject.encode(texts[:: max(1, len(texts) // count)])
    output, states = subject.states(batch, lens.probe.reads)
    site = lens.sites[0]
    searched = pruned(judge_of(subject, batch, site, lens.probe.baseline(0)), batch.valid, MARGIN)
    learned = (lens.keep(states, batch.valid)[-1] > 0.5) & batch.valid
    said = subject.task.describe(subject.task.predict(output, batch), batch)
    for name in ("all", *sorted(set(said))):
        rows = torch.tensor([name in ("all", one) for one in said])
        tokens = batch.valid[rows].sum()
        print(
            f"{name}: {int(rows.sum())} texts, search keeps {searched[rows].sum() / tokens:.1%}, "
            f"lens {learned[rows].sum() / tokens:.1%}"
        )


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:4]]
    main(*paths, *map(int, sys.argv[4:]))
