"""A planted decoder: the last word asks for a colour or an animal, and the next token is the one of the text.

Fillers never matter. The word that is not asked for does not matter either, but only the last position can
know this: in a causal model no state before the question has seen it.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any, NamedTuple

import tokenizers as tk
import torch
import torch.nn.functional as F
import transformers as hf

from masklens import Subject

FILLERS = [f"filler{i}" for i in range(8)]
KEYS = [[f"colour{i}" for i in range(8)], [f"animal{i}" for i in range(8)]]
QUESTIONS = [[f"{kind}{i}?" for i in range(4)] for kind in ("colour", "animal")]
"""several of each, so that a baseline cannot stand for all of them"""
WORDS = [*FILLERS, *sum(KEYS, []), *sum(QUESTIONS, [])]


class Example(NamedTuple):
    text: str
    asked: str
    """the word that the next token repeats"""
    other: str
    """the word that was not asked for"""


def examples(count: int, seed: int = 0) -> list[Example]:
    draw, made = random.Random(seed), []
    for _ in range(count):
        kind = draw.randrange(2)
        asked, other = draw.choice(KEYS[kind]), draw.choice(KEYS[1 - kind])
        words = [*draw.choices(FILLERS, k=draw.randint(3, 7)), asked, other]
        draw.shuffle(words)
        made.append(Example(" ".join([*words, draw.choice(QUESTIONS[kind])]), asked, other))
    return made


def texts(count: int, seed: int = 0) -> list[str]:
    return [one.text for one in examples(count, seed)]


@cache
def tokenizer() -> Any:
    """A token a word, after a start mark."""
    made = tk.Tokenizer(
        tk.models.WordLevel({w: i for i, w in enumerate(["<s>", "<pad>", "<unk>", *WORDS])}, "<unk>")
    )
    made.pre_tokenizer = tk.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tk.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", pad_token="<pad>", unk_token="<unk>"
    )


def untrained(width: int = 32, blocks: int = 2) -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=None,
    )
    return hf.LlamaForCausalLM(config)


@cache
def subject(steps: int = 300, each: int = 64) -> Subject:
    """Trained to answer; a few seconds."""
    made, model = examples(each * steps, seed=7), untrained()
    subject = Subject(model, tokenizer())
    batch = subject.encode([one.text for one in made])
    wanted = torch.tensor(tokenizer().convert_tokens_to_ids([one.asked for one in made]))
    last = batch.valid.sum(1) - 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 20, 2 * (1 - i / steps)))
    for part in torch.arange(len(made)).split(each):
        logits = model(**{name: value[part] for name, value in batch.inputs.items()}).logits
        loss = F.cross_entropy(logits[torch.arange(each), last[part]], wanted[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    return subject
