"""How much guarded masks remove when tokens are kept in a lens's order, another method's, or a random one.

    python -m benchmarks.guarded_masks MODEL LENS DATA_DIR [COUNT]

Every order is given the same start, the share that the lens keeps at P > KEEP, and the same guard: more is
kept of each text, most important first, until its output moves by at most BOUND (DiffMask's Eq. 2).
Tokens are removed by the lens's own baseline. Dev sentences of SST, deepest site, lens over inputs; a share
that a random order also reaches is the guard's and not the explanation's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import masklens
from masklens import Attribution, DiffMask, Subject
from masklens.evaluation import Verification
from masklens.reproduce.sst_faithfulness import BOUND, KEEP
from masklens.reproduce.treebank import read_split

METHODS = ("random", "gradcam", "grad_x_input", "integrated_gradients", "occlusion")
GUARD: dict[str, Any] = {"guard": BOUND, "same_prediction": False}


def main(model: Path, lens_folder: Path, data: Path, count: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    subject = Subject.from_pretrained(model, device=device, truncate=True)
    lens = DiffMask.from_pretrained(lens_folder, subject)
    texts = read_split(data, "sst5", "dev").texts
    texts = texts[:: max(1, len(texts) // count)]
    found = lens.explain(texts)
    site = lens.sites[-1]
    start = float(np.concatenate([a.at(site) > KEEP for a in found]).mean())
    print(f"{len(texts)} texts; every order starts from {start:.1%} kept", flush=True)
    _say("diffmask, its own numbers", lens.verify(found, KEEP, **GUARD), found)
    _say("diffmask", masklens.verify(subject, _ranked(found, site), start, lens, **GUARD), found)
    for method in METHODS:
        other = masklens.explain(subject, texts, method)
        _say(method, masklens.verify(subject, other, start, lens.baseline(site), **GUARD), found)


def _ranked(found: Sequence[Attribution], site: int) -> list[Attribution]:
    """The lens's scores as those of a method that gives no probabilities: a share of them is kept."""
    return [replace(a, sites=(site,), scores=a.at(site)[None], merge="sum") for a in found]


def _say(name: str, proofs: Sequence[Verification], found: Sequence[Attribution]) -> None:
    """Shares are over the tokens of all texts, as in `masklens reproduce sst`."""
    tokens = np.array([len(a.tokens) for a in found])
    removed = np.array([p.share_removed for p in proofs]) @ tokens / tokens.sum()
    each = [(p.opened > 0, p.prediction_kept, p.divergence) for p in proofs]
    opened, same, nats = np.mean(each, axis=0)
    print(
        f"{name}: {removed:.1%} removed, {opened:.1%} of the texts keep more than at first, "
        f"{same:.1%} of the predictions stay, {nats:.4f} nats",
        flush=True,
    )


if __name__ == "__main__":
    model, lens, data, *count = sys.argv[1:]
    main(Path(model), Path(lens), Path(data), int(count[0]) if count else 200)
