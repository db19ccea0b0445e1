"""Transformers trained on tasks whose relevant words are known.

In every task the label is a sum, so that each relevant word is needed whatever the others are. (If the label
were a majority, a model that knows it could do without some of the words, and a lens could rightly drop
them.) The tasks differ in the layer at which the model can know which words are relevant:

    lexical    some words count, most do not: known at the words
    count      the last two words name two digits, which count: known after attention
    two_hops   the last word names a letter, a definition gives its digit, which counts: known after two steps
               of attention
    mixed      like count, but half of the irrelevant words are fillers that never count: half is known at the
               words
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from masklens import Subject

SLOTS = 12
"""the number of words of a text that can be relevant"""
DIGITS = [str(digit) for digit in range(10)]
FILLERS = [f"filler{i}" for i in range(18)]
VALUED = [[f"one{i}" for i in range(3)], [f"two{i}" for i in range(3)]]
DEFINITIONS = [[f"{letter}={digit}" for digit in DIGITS] for letter in "ab"]
QUERIES = ["a?", "b?"]
WORDS = [*DIGITS, *FILLERS, *sum(VALUED, []), *sum(DEFINITIONS, []), *QUERIES]
CLASSES = 7
MOST = 3
"""relevant words among the slots, at most"""


class Examples(NamedTuple):
    """Texts of equal length, as words."""

    words: list[list[str]]
    relevant: Tensor
    """(texts, words) bool"""
    label: Tensor
    """(texts,)"""

    @property
    def texts(self) -> list[str]:
        return [" ".join(words) for words in self.words]


T = TypeVar("T")
Draw = Callable[[torch.Generator], tuple[list[str], list[bool], int]]


def _slots(generator: torch.Generator, fewest: int) -> list[bool]:
    """Which of the slots are relevant."""
    count = int(torch.randint(fewest, MOST + 1, (1,), generator=generator))
    chosen = set(torch.randperm(SLOTS, generator=generator)[:count].tolist())
    return [i in chosen for i in range(SLOTS)]


def _pick(generator: torch.Generator, options: Sequence[T]) -> T:
    return options[int(torch.randint(len(options), (1,), generator=generator))]


def lexical(generator: torch.Generator) -> tuple[list[str], list[bool], int]:
    relevant = _slots(generator, 0)
    values = [int(_pick(generator, [1, 2])) if r else 0 for r in relevant]
    words = [_pick(generator, VALUED[v - 1] if v else FILLERS) for v in values]
    return words, relevant, sum(values)


def count(generator: torch.Generator, fillers: float = 0.0) -> tuple[list[str], list[bool], int]:
    order = torch.randperm(10, generator=generator).tolist()
    asked, others = [str(d) for d in order[:2]], [str(d) for d in order[2:]]
    relevant = _slots(generator, 1)
    values = [int(_pick(generator, [1, 2])) if r else 0 for r in relevant]
    plain = [FILLERS if float(torch.rand(1, generator=generator)) < fillers else others for _ in values]
    words = [asked[v - 1] if v else _pick(generator, other) for v, other in zip(values, plain, strict=True)]
    return words + asked, relevant + [True, True], sum(values)


def mixed(generator: torch.Generator) -> tuple[list[str], list[bool], int]:
    return count(generator, fillers=0.5)


def two_hops(generator: torch.Generator) -> tuple[list[str], list[bool], int]:
    digits = torch.randperm(10, generator=generator)[:2].tolist()
    letter = int(_pick(generator, [0, 1]))
    order = _pick(generator, [[0, 1], [1, 0]])
    wanted, others = str(digits[letter]), [d for d in DIGITS if d != str(digits[letter])]
    relevant = _slots(generator, 1)
    words = [wanted if r else _pick(generator, others) for r in relevant]
    defined = [DEFINITIONS[which][digits[which]] for which in order]
    needed = [which == letter for which in order]
    return defined + words + [QUERIES[letter]], needed + relevant + [True], sum(relevant)


TASKS: dict[str, Draw] = {"lexical": lexical, "count": count, "two_hops": two_hops, "mixed": mixed}


def generate(task: str, texts: int, seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    words, relevant, label = zip(*(TASKS[task](generator) for _ in range(texts)), strict=True)
    return Examples(list(words), torch.tensor(relevant), torch.tensor(label))


def tokenizer():
    """Words to ids, [CLS] first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def build(task: str, seed: int, steps: int = 4000, layers: int = 4, width: int = 64) -> tuple[Subject, float]:
    """A small BERT that has learned a task, and its accuracy on texts it has not seen.

    During training, an auxiliary linear layer also has to find the relevant words in the states of the last
    but one block. Without this help the model learns to attend late or never.
    """
    encoder = tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, helper = _untrained(len(encoder), layers, width), nn.Linear(width, 1)
    train, test = generate(task, 100_000, seed + 1000), generate(task, 2000, seed + 2000)
    ids, test_ids = (torch.tensor(encoder(some.texts)["input_ids"]) for some in (train, test))
    parameters = [*model.parameters(), *helper.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    generator, good = torch.Generator().manual_seed(seed), 0
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, (step + 1) / 100, 0.02 + 2 * (1 - step / steps))
        some = torch.randint(len(ids), (128,), generator=generator)
        optimizer.zero_grad()
        _loss(model, helper, ids[some], train.label[some], train.relevant[some]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 200 == 199:
            accuracy = _accuracy(model, test_ids, test.label)
            good += accuracy >= 0.997
            if good == 2:
                break
    return Subject(model.eval(), encoder), accuracy


def _untrained(words: int, layers: int, width: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=32,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def _loss(model: nn.Module, helper: nn.Module, ids: Tensor, label: Tensor, relevant: Tensor) -> Tensor:
    """The loss of the sum plus that of the auxiliary layer for relevant words; [CLS] is left out."""
    out = model(ids, output_hidden_states=True)
    told = helper(out.hidden_states[-2])[:, 1:, 0]
    wrong = F.binary_cross_entropy_with_logits(told, relevant.float())
    return F.cross_entropy(out.logits, label) + wrong


@torch.no_grad()
def _accuracy(model: nn.Module, ids: Tensor, label: Tensor) -> float:
    return float((model(ids).logits.argmax(1) == label).float().mean())
