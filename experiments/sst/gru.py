"""The sentiment classifier of DiffMask's Table 2: a one-layer GRU on frozen pre-trained word embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from masklens.attribution import Text
from masklens.model.batch import Batch
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import Classification

from .treebank import LABELS, Sentence

HIDDEN = 128
EPOCHS = 8


class SentimentGru(nn.Module):
    """Frozen word embeddings, a GRU, a linear layer on its last state."""

    def __init__(self, vectors: Tensor, hidden: int = HIDDEN, classes: int = len(LABELS)) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.gru = nn.GRU(vectors.shape[1], hidden, batch_first=True)
        self.classify = nn.Linear(hidden, classes)

    def forward(self, words: Tensor, valid: Tensor) -> Tensor:
        """(examples, words), (examples, words) -> (examples, classes) logits"""
        states, _ = self.gru(self.embed(words))
        last = valid.long().sum(1) - 1  # the GRU is causal: padding after the last word does not matter
        return self.classify(states[torch.arange(len(states), device=last.device), last])


class Vocabulary:
    """Words by number; word 0 is one that is not known, and padding."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._number = {word: i for i, word in enumerate(self.words, start=1)}

    @classmethod
    def of(cls, *splits: Sequence[Sentence]) -> Vocabulary:
        return cls(sorted({word for split in splits for sentence in split for word in sentence.words}))

    def number(self, word: str) -> int:
        return self._number.get(word, 0)


@torch.no_grad()
def word_vectors(checkpoint: Path, vocabulary: Vocabulary) -> Tensor:
    """For every word the mean of its word pieces' embeddings in a checkpoint: (1 + words, width)."""
    subject = Subject.from_pretrained(checkpoint)
    table = subject.module.get_input_embeddings().weight.float()  # type: ignore[operator]
    pieces = subject.tokenizer(list(vocabulary.words), add_special_tokens=False)["input_ids"]
    unknown = subject.tokenizer.unk_token_id
    rows = [table[torch.tensor(ids or [unknown])].mean(0) for ids in ([unknown], *pieces)]
    return torch.stack(rows)


def encode(vocabulary: Vocabulary, texts: Sequence[Text]) -> Batch:
    """Texts whose words stand between blanks; the tokens are the words."""
    rows = [str(text).split() for text in texts]
    length = max(len(row) for row in rows)
    numbers = [[vocabulary.number(word) for word in row] + [0] * (length - len(row)) for row in rows]
    valid = torch.arange(length)[None, :] < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(
        inputs={"words": torch.tensor(numbers), "valid": valid},
        valid=valid,
        special=~valid,
        segments=torch.zeros_like(valid, dtype=torch.long),
        tokens=tuple(tuple(row) for row in rows),
        offsets=tuple(_offsets(row) for row in rows),
        texts=tuple(texts),
        truncated=(False,) * len(rows),
    )


def _offsets(words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    found, start = [], 0
    for word in words:
        found.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(found)


def subject_for(model: SentimentGru, vocabulary: Vocabulary) -> Subject:
    """One site: the words' vectors."""
    points = [Point(model.embed)]
    return Subject.from_module(model.eval(), points, Classification(LABELS), partial(encode, vocabulary))


def train_gru(
    model: SentimentGru,
    vocabulary: Vocabulary,
    train: Sequence[Sentence],
    dev: Sequence[Sentence],
    seed: int,
    epochs: int = EPOCHS,
    lr: float = 1e-3,
) -> float:
    """Adam on batches of 64, the epoch of the best dev accuracy, which is returned."""
    generator = torch.Generator().manual_seed(seed)
    device = model.classify.weight.device
    batch, labels = encode(vocabulary, [s.text for s in train]), torch.tensor([s.label for s in train])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    best, kept = -1.0, {}
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=generator).split(64):
            words, valid = (batch.inputs[name][rows].to(device) for name in ("words", "valid"))
            longest = int(valid.sum(1).max())
            logits = model(words[:, :longest], valid[:, :longest])
            loss = F.cross_entropy(logits, labels[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = accuracy(model, vocabulary, dev)
        if score > best:
            best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return best


@torch.no_grad()
def accuracy(model: SentimentGru, vocabulary: Vocabulary, sentences: Sequence[Sentence]) -> float:
    batch = encode(vocabulary, [s.text for s in sentences]).to(model.classify.weight.device)
    predicted = model(**batch.inputs).argmax(-1).cpu()
    return (predicted == torch.tensor([s.label for s in sentences])).float().mean().item()
