"""SQuAD's questions, as the data folder has them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from masklens.errors import FileError
from masklens.model.batch import Batch
from masklens.model.subject import Subject
from masklens.tasks.positions import occurrences


class Question(NamedTuple):
    """A question about a passage, with its gold answers."""

    pair: tuple[str, str]
    """(question, passage)"""
    answers: tuple[str, ...]
    """those that differ, in order"""
    once: bool
    """whether every answer occurs exactly once in the passage, so that its place is known"""


def read_questions(data: Path, split: str) -> list[Question]:
    """All questions of "train" or "dev", in order."""
    path = data / "squad" / f"{split}.json.xz"
    if not path.exists():
        raise FileError(f"no file {path}; --data is the folder that holds squad/")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        Question(
            (entry["question"].strip(), paragraph["context"]),
            tuple(dict.fromkeys(answer["text"] for answer in entry["answers"])),
            all(answer["n_occ"] == 1 for answer in entry["answers"]),
        )
        for article in articles
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]


def that_fit(subject: Subject, questions: Sequence[Question], longest: int) -> list[Question]:
    """Those of at most `longest` tokens together with their passage."""
    found = subject.tokenizer([q.pair[0] for q in questions], [q.pair[1] for q in questions], verbose=False)
    return [q for q, ids in zip(questions, found["input_ids"], strict=True) if len(ids) <= longest]


def shuffled(questions: Sequence[Question], seed: int) -> list[Question]:
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(seed)).tolist()
    return [questions[i] for i in order]


def gold_spans(batch: Batch, i: int, question: Question) -> list[tuple[int, int]]:
    """First and last token of each gold answer, in the order of the answers; none that was cut off."""
    return [span for answer in question.answers for span in occurrences(batch, i, answer, segment=1)]
