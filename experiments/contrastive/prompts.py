"""Prompts whose next word is decided by a known earlier word, and how well scores point to that word."""

from __future__ import annotations

import csv
import lzma
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from masklens import Attribution
from masklens.errors import FileError

FILE = Path("contrastive") / "evidence.csv.xz"


@dataclass(frozen=True)
class Prompt:
    """After `prefix` the word `good` is right and `bad` is wrong, because of the word `evidence`."""

    prefix: str
    good: str
    bad: str
    evidence: str

    @property
    def target(self) -> tuple[str, str]:
        """Good rather than bad."""
        return f" {self.good}", f" {self.bad}"


def read_prompts(data: Path, limit: int, seed: int) -> dict[str, list[Prompt]]:
    """At most `limit` prompts of each set, drawn with the seed."""
    path = data / FILE
    if not path.exists():
        raise FileError(f"no prompts at {path}; give --data the folder that holds {FILE}")
    sets: dict[str, list[Prompt]] = defaultdict(list)
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sets[row.pop("set")].append(Prompt(**row))
    return {
        name: random.Random(seed).sample(some, min(limit, len(some))) for name, some in sorted(sets.items())
    }


def evidence_tokens(prompt: Prompt, made: Attribution) -> np.ndarray:
    """Which tokens belong to the evidence, wherever it stands in the prefix: (tokens,) bool."""
    words = re.finditer(rf"(?<!\w){re.escape(prompt.evidence)}(?!\w)", prompt.prefix)
    spans = [word.span() for word in words]
    touched = [any(a < end and start < b for start, end in spans) for a, b in made.offsets]
    return np.array(touched) & ~np.array(made.special)


def alignment(scores: np.ndarray, evidence: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """(2, sites): reciprocal rank and dot product, from scores (sites, tokens) (Yin and Neubig 2022).

    The rank is that of the best evidence token among the counted tokens. Of the other tokens with the same
    score, half count as before it. The dot product is the evidence's share of the absolute scores.
    """
    best = scores[:, evidence].max(1, keepdims=True)
    other = scores[:, counted & ~evidence]
    rank = 1 + (other > best).sum(1) + 0.5 * (other == best).sum(1)
    size = np.abs(scores[:, counted]).sum(1)
    share = scores[:, evidence].sum(1) / np.where(size > 0, size, 1)
    return np.stack([1 / rank, share])
