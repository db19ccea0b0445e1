"""Texts to model inputs: `Batch`, and the encoder that a Hugging Face tokenizer gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .attribution import Text
from .errors import TextError


@dataclass(frozen=True)
class Batch:
    """Encoded texts, padded to one length. Every tensor has the examples first."""

    inputs: dict[str, Tensor]
    """what the module is called with"""
    valid: Tensor
    """(examples, tokens) bool: False at padding"""
    special: Tensor
    """(examples, tokens) bool: markers such as [CLS], which stand for no text"""
    segments: Tensor
    """(examples, tokens) int: which text of a pair"""
    tokens: tuple[tuple[str, ...], ...]
    """for each example, the tokens that are not padding"""
    offsets: tuple[tuple[tuple[int, int], ...], ...]
    texts: tuple[Text, ...]
    truncated: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def shape(self) -> torch.Size:
        """(examples, tokens)"""
        return self.valid.shape

    def take(self, rows: Sequence[int]) -> Batch:
        """The given examples, in the given order, repeats allowed."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.valid.device)
        return replace(
            self,
            inputs={name: value[index.to(value.device)] for name, value in self.inputs.items()},
            valid=self.valid[index],
            special=self.special[index],
            segments=self.segments[index],
            tokens=tuple(self.tokens[i] for i in rows),
            offsets=tuple(self.offsets[i] for i in rows),
            texts=tuple(self.texts[i] for i in rows),
            truncated=tuple(self.truncated[i] for i in rows),
        )

    def repeat(self, times: int) -> Batch:
        """Each example `times` times in a row."""
        return self.take([i for i in range(len(self)) for _ in range(times)])

    def to(self, device: torch.device | str) -> Batch:
        return replace(
            self,
            inputs={name: value.to(device) for name, value in self.inputs.items()},
            valid=self.valid.to(device),
            special=self.special.to(device),
            segments=self.segments.to(device),
        )


class TokenizerEncoder:
    """Encode strings, or pairs of strings, with a Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, max_length: int | None, truncate: bool = False) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.truncate = truncate

    def __call__(self, texts: Sequence[Text]) -> Batch:
        encoded = [self._encode(text) for text in texts]
        rows = [one for one, _ in encoded]
        length = max(len(row["input_ids"]) for row in rows)
        inputs = {
            name: torch.tensor([_pad(row[name], length, self._fill(name)) for row in rows])
            for name in self.tokenizer.model_input_names
            if name in rows[0]
        }
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        valid = torch.arange(length)[None, :] < lengths[:, None]  # (examples, tokens)
        inputs.setdefault("attention_mask", valid.long())
        return Batch(
            inputs=inputs,
            valid=valid,
            special=torch.tensor([_pad(row["special_tokens_mask"], length, 1) for row in rows]).bool(),
            segments=torch.tensor([_pad(_segments(row), length, 0) for row in rows]),
            tokens=tuple(tuple(self.tokenizer.convert_ids_to_tokens(row["input_ids"])) for row in rows),
            offsets=tuple(tuple((int(s), int(e)) for s, e in row["offset_mapping"]) for row in rows),
            texts=tuple(texts),
            truncated=tuple(cut for _, cut in encoded),
        )

    def _encode(self, text: Text) -> tuple[Any, bool]:
        first, second = (text, None) if isinstance(text, str) else text
        row = self.tokenizer(
            first, second, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )
        count = len(row["input_ids"])
        if count == 0:
            raise TextError(f"the text {text!r} has no tokens; give one with at least one")
        if self.max_length is None or count <= self.max_length:
            return row, False
        if not self.truncate:
            raise TextError(
                f"a text of {count} tokens starting with {first[:40]!r} is longer than the model takes "
                f"({self.max_length}); shorten it, or pass truncate=True to cut it"
            )
        row = self.tokenizer(
            first,
            second,
            truncation=True,
            max_length=self.max_length,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        return row, True

    def _fill(self, name: str) -> int:
        if name == "input_ids":
            return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        return 0


def _pad(values: Sequence[int], length: int, fill: int) -> list[int]:
    return [*values, *[fill] * (length - len(values))]


def _segments(row: Any) -> list[int]:
    """0 for the first text, 1 for the second; a special token goes with the text before it."""
    current, out = 0, []
    for which in row.sequence_ids(0) if hasattr(row, "sequence_ids") else [None] * len(row["input_ids"]):
        current = current if which is None else which
        out.append(current)
    return out
