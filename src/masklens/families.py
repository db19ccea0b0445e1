"""Where the sites of a Hugging Face model are: found by rule, exceptions in a table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import nn

from .errors import ModelError
from .tap import Point
from .tasks import Classification, Task


@dataclass(frozen=True)
class Family:
    """Dotted paths inside a base model; None means: found by rule."""

    embeddings: str | None = None
    """the word-embedding module that is really called"""
    blocks: str | None = None
    """the list of blocks, or one block that is called repeatedly"""


FAMILIES: dict[str, Family] = {}


def register_family(model_type: str, embeddings: str | None = None, blocks: str | None = None) -> None:
    """Tell where a family keeps its word embeddings and its blocks, by its config's `model_type`."""
    FAMILIES[model_type] = Family(embeddings, blocks)


def find_points(model: nn.Module) -> tuple[dict[int, Point], dict[int, Point]]:
    """The sites of a model, and its blocks by the site of their output."""
    blocks = find_blocks(model)
    outputs = {k + 2: Point(block) for k, block in enumerate(blocks)}
    points = {0: Point(model.get_input_embeddings()), 1: Point(blocks[0], "input")}
    return points | outputs, outputs


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one class: the block list in every family tried."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(x) for x in m}) == 1]
    if not lists:
        raise ModelError(
            f"no list of blocks found in {type(model).__name__}: looked for the longest nn.ModuleList of "
            f"one class. Call masklens.register_family with the paths of its embeddings and blocks."
        )
    return list(max(lists, key=len))


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens the model takes, or None where there is no limit."""
    config = model.config
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    known = [n for n in limits if n is not None and n < 10**6]
    return min(known, default=None)


def read_task(model: nn.Module, tokenizer: Any) -> Task:
    """The task that the model's head stands for."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        labels = model.config.id2label
        return Classification([labels[i] for i in range(model.config.num_labels)])
    raise ModelError(f"no task known for {type(model).__name__}; pass task= to Subject")


def load_pretrained(path: str | os.PathLike[str]) -> tuple[nn.Module, Any]:
    """The model, with the head its config names, and the tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True)
    return model, AutoTokenizer.from_pretrained(path)
