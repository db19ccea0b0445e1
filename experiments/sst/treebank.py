"""The Stanford Sentiment Treebank: sentences with a label each, words with a label each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from masklens.errors import FileError

from ..labelled import Labelled, read_test

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
NEUTRAL = 2
LEAF = re.compile(r"\((\d) ([^()\s]+)\)")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


class Sentence(NamedTuple):
    """A tree's leaves and its root."""

    words: tuple[str, ...]
    word_labels: tuple[int, ...]
    """0 to 4, very negative to very positive"""
    label: int

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def spans(self) -> list[tuple[int, int, str]]:
        """(start, end, label) of every word, as characters of the text."""
        found, start = [], 0
        for word, label in zip(self.words, self.word_labels, strict=True):
            found.append((start, start + len(word), LABELS[label]))
            start += len(word) + 1
        return found


def read_trees(data: Path, split: str) -> list[Sentence]:
    """The sentences of "train", "dev" or "test" (8,544, 1,101 and 2,210)."""
    path = data / "sst" / f"{split}.txt"
    if not path.exists():
        raise FileError(f"no file {path}; --data is the folder that holds sst/")
    with path.open(encoding="utf-8") as lines:
        return [parse(line) for line in lines if line.strip()]


def parse(tree: str) -> Sentence:
    """One tree in brackets, such as (3 (2 A) (3 (3 fun) (2 film)))."""
    leaves = LEAF.findall(tree)
    words = tuple(BRACKETS.get(word, word.replace("\\", "")) for _, word in leaves)
    return Sentence(words, tuple(int(label) for label, _ in leaves), int(tree.strip()[1]))


def read_split(data: Path, task: str, split: str) -> Labelled:
    """Labelled sentences for a model of five classes ("sst5") or of two ("sst2").

    SST-2 is the same sentences in lower case. Its dev set is read as published; its test set, published
    without labels, is the treebank's without the neutral sentences. Training sentences are whole ones,
    neutral ones too: a lens needs no labels.
    """
    if task == "sst2" and split == "dev":
        return read_test(data, "sst2")
    trees = read_trees(data, split)
    if task == "sst5":
        return Labelled([tree.text for tree in trees], [tree.label for tree in trees])
    kept = [tree for tree in trees if split == "train" or tree.label != NEUTRAL]
    return Labelled([tree.text.lower() for tree in kept], [int(tree.label > NEUTRAL) for tree in kept])
