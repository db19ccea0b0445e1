"""A model whose answers can be worked out by hand: each word adds a number to the logit of "good"."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tokenizers as tk
import torch
import transformers as hf
from torch import nn

import tiny
from masklens import Subject
from masklens.attribution import Attribution
from masklens.model.batch import TokenizerEncoder
from masklens.model.tap import Point
from masklens.tasks.classification import Classification

WEIGHTS = {"fast": 2.0, "enjoyable": 1.0, "dull": -3.0, "plot": 0.5}


@cache
def words() -> Any:
    """A tokenizer with a token for each word."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WEIGHTS, "a", "the", "is", "."]
    tokenizer = tk.Tokenizer(
        tk.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    marks = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{k}_token": v for k, v in marks.items()}
    )


class BagOfWords(nn.Module):
    """logits = (0, sum of the weights of the words that are attended to)"""

    def __init__(self) -> None:
        super().__init__()
        tokenizer = words()
        self.weight = nn.Embedding(len(tokenizer), 1)
        nn.init.zeros_(self.weight.weight)
        with torch.no_grad():
            for word, value in WEIGHTS.items():
                (token,) = tokenizer(word, add_special_tokens=False)["input_ids"]
                self.weight.weight[token] = value

    def forward(self, input_ids, attention_mask, **_):
        total = (self.weight(input_ids)[..., 0] * attention_mask).sum(1)
        return torch.stack([torch.zeros_like(total), total], 1)


def subject() -> Subject:
    net, tokenizer = BagOfWords(), words()
    encode = TokenizerEncoder(tokenizer, None)
    made = Subject.from_module(net, [Point(net.weight)], Classification(["bad", "good"]), encode)
    made.tokenizer = tokenizer
    return made


def transformer() -> Subject:
    """A tiny random BERT with the same tokenizer."""
    return Subject(tiny.model("bert", vocab_size=len(words())), words())


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def attribution(
    made: Subject, text: str, by_token: dict[str, float], method="planted", merge="sum"
) -> Attribution:
    """Scores of the named tokens, 0 for the others."""
    batch = made.encode([text])
    tokens = batch.tokens[0]
    output = made.run(batch).output
    name = made.task.describe(made.task.predict(output, batch), batch)[0]
    return Attribution(
        text=text,
        tokens=tokens,
        offsets=batch.offsets[0],
        special=tuple(batch.special[0].tolist()),
        segments=tuple(batch.segments[0].tolist()),
        sites=(0,),
        scores=np.array([[by_token.get(token, 0.0) for token in tokens]]),
        prediction=name,
        target=name,
        method=method,
        merge=merge,
    )
