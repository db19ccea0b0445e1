"""Tiny random models that every method's test shares."""

from __future__ import annotations

import torch
from torch import nn

from masklens.model.batch import Batch

WORDS = ["a", "fast", "funny", "highly", "enjoyable", "movie", "dull", "slow", "and", "bleak"]
WORDS += ["film", "not", "the", "is", "it"]
TEXTS = [
    "a fast funny highly enjoyable movie",
    "dull film",
    "the movie is not funny and not fast",
    "it is bleak",
]


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, sep_token="[SEP]", mask_token="[MASK]", **names)


def tiny_config(**more):
    from transformers import BertConfig

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return BertConfig(
        vocab_size=len(WORDS) + 5,
        max_position_embeddings=32,
        initializer_range=0.4,
        num_labels=3,
        **sizes,
        **more,
    )


def encode_words(texts) -> Batch:
    """Whitespace words as tokens, no special tokens, padded."""
    rows = [text.split() for text in texts]
    length = max(map(len, rows))
    ids = torch.tensor([[WORDS.index(w) + 1 for w in row] + [0] * (length - len(row)) for row in rows])
    starts = [[sum(len(w) + 1 for w in row[:i]) for i in range(len(row))] for row in rows]
    return Batch(
        inputs={"ids": ids},
        valid=ids > 0,
        special=torch.zeros_like(ids).bool(),
        segments=torch.zeros_like(ids),
        tokens=tuple(map(tuple, rows)),
        offsets=tuple(
            tuple((s, s + len(w)) for s, w in zip(starts[i], row, strict=True)) for i, row in enumerate(rows)
        ),
        texts=tuple(texts),
        truncated=(False,) * len(texts),
    )


class SecondWordReader(nn.Module):
    """A planted model: the logit is read off the second word's state and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS) + 1, 6)
        self.body = nn.Identity()
        self.head = nn.Linear(6, 1, bias=False)
        with torch.no_grad():
            self.embed.weight.copy_(
                torch.randn(len(WORDS) + 1, 6, generator=torch.Generator().manual_seed(0))
            )
            self.head.weight.copy_(torch.tensor([[3.0, -2.0, 1.0, 0.5, 2.0, -1.0]]))

    def forward(self, ids):
        return self.head(self.body(self.embed(ids))[:, 1])


class GruClassifier(nn.Module):
    """Embeddings, a GRU over the valid tokens, a linear head on the last hidden state."""

    def __init__(
        self, width: int = 8, hidden: int = 8, classes: int = 3, packed: bool = True, seed: int = 0
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(len(WORDS) + 1, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(hidden, classes)
        self.packed = packed
        with torch.no_grad():
            self.head.weight.mul_(4)

    def forward(self, ids):
        states, lengths = self.embed(ids), (ids > 0).sum(1)
        if self.packed:
            packed = nn.utils.rnn.pack_padded_sequence(
                states, lengths, batch_first=True, enforce_sorted=False
            )
            return self.head(self.drop(self.gru(packed)[1][-1]))
        out = self.gru(states)[0]
        return self.head(self.drop(out[torch.arange(len(ids)), lengths - 1]))
