"""What greedy search keeps of texts of each predicted class, beside what a lens over inputs keeps.

    python -m benchmarks.greedy_masks MODEL_DIR DATA_DIR LENS_DIR [TEXTS]

On dev sentences of SST of 6 to 12 words, with the lens's baseline: tokens are dropped one by one, each time
the one that moves the output least, while it moves by at most 0.05 nats. Search has hindsight, and no class
in mind: where it keeps less of one class too, the model needs less.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from masklens import DiffMask, Subject
from masklens.encoding import Batch
from masklens.objectives import edited_run
from masklens.reproduce.treebank import read_split

MARGIN, SHORTEST, LONGEST = 0.05, 6, 12


def greedy(subject: Subject, batch: Batch, reference: Tensor, state: Tensor, baseline: Tensor) -> Tensor:
    """Which tokens of one text are left: (tokens,) of 0 and 1."""
    keep = torch.ones(batch.shape[1], device=state.device)
    while keep.any():
        places = keep.nonzero()[:, 0]
        less = keep.repeat(len(places), 1)
        less[torch.arange(len(places)), places] = 0
        many = batch.take([0] * len(places))
        output = edited_run(subject, many, 0, state.expand(len(places), -1, -1), less, baseline)
        moved = subject.task.divergence(reference.expand(len(places), -1), output)
        if moved.min() > MARGIN:
            break
        keep = less[moved.argmin()]
    return keep


@torch.no_grad()
def main(model: Path, data: Path, folder: Path, count: int = 50) -> None:
    subject = Subject.from_pretrained(model, truncate=True)
    lens = DiffMask.from_pretrained(folder, subject)
    every = read_split(data, model.name.rpartition("-")[2], "dev").texts
    texts = [text for text in every if SHORTEST <= len(text.split()) <= LONGEST]
    shares = defaultdict(list)
    for text in texts[:: max(1, len(texts) // count)]:
        batch = subject.encode([text])
        reference, states = subject.states(batch, lens.probe.reads)
        searched = greedy(subject, batch, reference, states[0], lens.probe.baseline(0))
        learned = lens.keep(states, batch.valid)[-1, 0] > 0.5
        said = subject.task.describe(subject.task.predict(reference, batch), batch)[0]
        shares[said].append((searched.sum().item(), learned.sum().item(), batch.shape[1]))
    for said, counts in sorted(shares.items()):
        searched, learned, tokens = (sum(column) for column in zip(*counts, strict=True))
        print(
            f"{said}: {len(counts)} texts, search keeps {searched / tokens:.1%}, lens {learned / tokens:.1%}"
        )


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:4]]
    main(*paths, *map(int, sys.argv[4:]))
