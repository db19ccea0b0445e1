"""Language models: masked, causal, and encoder-decoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attribution import Text
from ..errors import ModelError, TargetError, TextError
from ..model.batch import Batch
from ..model.tokenizer import TOKENIZING
from .base import Task, per_text
from .classification import categorical_average, categorical_kl
from .positions import labelled


class Continuation(NamedTuple):
    """A target as the tokens of a continuation, step by step."""

    given: list[int]
    """tokens that are inserted before the first explained step"""
    ids: list[int]
    """the token of each step; empty for one step with the token that the model predicts"""
    other: int | None = None
    """for a contrast: the token with which the token of the only step is compared"""


def contrast(first: list[int], second: list[int], wanted: tuple[Any, Any]) -> Continuation:
    """The first token in which two answers differ, and those before it; `wanted` is what the user gave."""
    same = next((k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if same is None:
        raise TargetError(f"{wanted[0]!r} and {wanted[1]!r} start with the same tokens; nothing to compare")
    return Continuation(first[:same], [first[same]], second[same])


class LanguageModel(Task):
    """Tokens chosen one after the other: output (examples, steps, vocabulary) logits, 0 at unused steps.

    A target is (examples, steps, 2): the token of each step and the token it is compared with, -1 for none.
    The user gives a token id, a string (one or more tokens), or a pair (A, B) that means "A rather than B". A
    pair is compared at the first token where the two differ. The score of a token is its log-probability, not
    its logit: all logits of a vocabulary can move together. Of several tokens it is the sum, of a pair the
    difference. The divergence is the sum of the KL of the steps.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def prepare(self, batch: Batch, wanted: Any = None) -> Batch:
        plans = [self._plan(one) for one in per_text(wanted, len(batch))]
        steps = max((len(plan.ids) for plan in plans), default=1) or 1
        batch, first = self._extend(batch, plans)  # first: (examples, steps)
        used = torch.tensor([[s < max(len(plan.ids), 1) for s in range(steps)] for plan in plans])
        positions = first[:, :steps].masked_fill(~used.to(first.device), -1)
        return replace(batch, marks=batch.marks | {"positions": positions})

    @abstractmethod
    def _extend(self, batch: Batch, plans: Sequence[Continuation]) -> tuple[Batch, Tensor]:
        """The batch with the given tokens added, and the position where each step is read."""

    def _plan(self, wanted: Any) -> Continuation:
        if isinstance(wanted, Continuation):
            return wanted
        if wanted is None:
            return Continuation([], [])
        if not isinstance(wanted, tuple):
            return Continuation([], self._ids(wanted))
        if len(wanted) != 2:
            raise TargetError(f"{wanted!r} is no target; a contrast is a pair (A, B): A rather than B")
        return contrast(self._ids(wanted[0]), self._ids(wanted[1]), wanted)

    def _ids(self, wanted: Any) -> list[int]:
        """Token ids from an id or a string."""
        if isinstance(wanted, str):
            with TOKENIZING:
                ids = self.tokenizer(wanted, add_special_tokens=False)["input_ids"]
            if not ids:
                raise TargetError(f"the target {wanted!r} has no tokens")
            return list(ids)
        if isinstance(wanted, bool) or not 0 <= int(wanted) < len(self.tokenizer):
            raise TargetError(f"no token {wanted!r}; give a string, or an id below {len(self.tokenizer)}")
        return [int(wanted)]

    def read(self, raw: Any, batch: Batch) -> Tensor:
        positions = batch.marks["positions"][:, :, None]  # (examples, steps, 1)
        index = positions.clamp(min=0).expand(-1, -1, raw.logits.shape[-1])
        return raw.logits.gather(1, index.to(raw.logits.device)).masked_fill(positions < 0, 0.0)

    def predict(self, output: Tensor, batch: Batch) -> Tensor:
        ids = output.argmax(-1).masked_fill(batch.marks["positions"] < 0, -1)
        return torch.stack([ids, torch.full_like(ids, -1)], -1)

    def resolve(self, wanted: Any, output: Tensor, batch: Batch) -> Tensor:
        target = self.predict(output, batch)
        for i, one in enumerate(per_text(wanted, len(batch))):
            plan = self._plan(one)
            if len(plan.ids) > int((batch.marks["positions"][i] >= 0).sum()):
                raise TargetError(
                    f"the batch was not encoded for the target {one!r}; give it to Subject.encode"
                )
            if plan.ids:
                target[i, : len(plan.ids), 0] = torch.tensor(plan.ids)
            if plan.other is not None:
                target[i, 0, 1] = plan.other
        return target

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        wanted, other = target.unbind(-1)  # (examples, steps)
        chosen = _chosen(output, wanted)
        single = _log_probability(output, chosen, wanted).masked_fill(wanted < 0, 0.0)
        return torch.where(other >= 0, chosen - _chosen(output, other), single).sum(1)

    def divergence(self, reference: Tensor, output: Tensor) -> Tensor:
        return categorical_kl(reference, output).sum(1)

    def describe(self, target: Tensor, batch: Batch) -> list[str]:
        names = []
        for row in target.tolist():
            wanted, other = ([k for k, _ in row if k >= 0], [k for _, k in row if k >= 0])
            names.append(" rather than ".join(self.tokenizer.decode(ids) for ids in (wanted, other) if ids))
        return names


def _log_probability(output: Tensor, chosen: Tensor, ids: Tensor) -> Tensor:
    """(examples, steps): the log-probability of the ids, whose logits are `chosen`.

    It is that of the odds against all other tokens: a plain log-softmax of a nearly certain token is 0, with
    a wrong gradient.
    """
    rest = output.scatter(-1, ids.clamp(min=0)[:, :, None], -torch.inf).logsumexp(-1)
    return F.logsigmoid(chosen - rest)


def _chosen(values: Tensor, ids: Tensor) -> Tensor:
    """(examples, steps): the values at the ids, 0 where the id is -1."""
    return values.gather(-1, ids.clamp(min=0)[:, :, None])[:, :, 0].masked_fill(ids < 0, 0.0)


class MaskedLM(LanguageModel):
    """The token at the first mask of the text; a target of n tokens is for the first n masks."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "a masked language model needs a tokenizer with a mask token; set tokenizer.mask_token"
            )

    def _extend(self, batch: Batch, plans: Sequence[Continuation]) -> tuple[Batch, Tensor]:
        steps = max(1, *(len(plan.ids) for plan in plans))
        rows = []
        for i, plan in enumerate(plans):
            found = (batch.inputs["input_ids"][i] == self.tokenizer.mask_token_id).nonzero()[:, 0].tolist()
            needed = max(1, len(plan.ids))
            if plan.given:
                raise TargetError("tokens to compare at a mask must differ in their first token")
            if len(found) < needed:
                raise TextError(
                    f"{len(found)} {self.tokenizer.mask_token} in {batch.texts[i]!r:.80}; put {needed} where "
                    f"the model is to fill in"
                )
            rows.append((found + [-1] * steps)[:steps])
        return batch, torch.tensor(rows, device=batch.valid.device)


class CausalLM(LanguageModel):
    """The next token after the text, or a given continuation.

    The tokens of the continuation are added to the input, but they are not part of the text. They are not
    valid and get no score. States of special tokens are never replaced: the start token is an attention sink,
    and without it a model fails on any text.
    """

    fixed_shape = True

    def removable(self, batch: Batch) -> Tensor:
        return labelled(batch)

    def reader(self, batch: Batch) -> Tensor:
        return batch.marks["positions"][:, 0]

    def average(self, outputs: Tensor) -> Tensor:
        return categorical_average(outputs)

    def _extend(self, batch: Batch, plans: Sequence[Continuation]) -> tuple[Batch, Tensor]:
        lengths = batch.valid.sum(1)  # texts are padded on the right
        forced = [[*plan.given, *plan.ids[:-1]] for plan in plans]
        skipped = torch.tensor([len(plan.given) for plan in plans], device=lengths.device)
        steps = torch.arange(max(1, *(len(plan.ids) for plan in plans)), device=lengths.device)
        return _append(batch, lengths, forced), (lengths - 1 + skipped)[:, None] + steps


def _append(batch: Batch, lengths: Tensor, forced: Sequence[Sequence[int]]) -> Batch:
    """Add tokens after each text. They are attended to, but not valid."""
    longest = max((int(n) + len(ids) for n, ids in zip(lengths, forced, strict=True)), default=0)
    batch = batch.widened(max(longest, batch.shape[1]))
    for i, ids in enumerate(forced):
        where = slice(int(lengths[i]), int(lengths[i]) + len(ids))
        batch.inputs["input_ids"][i, where] = torch.tensor(ids, dtype=torch.long)
        batch.inputs["attention_mask"][i, where] = 1
    return batch


class Seq2SeqLM(LanguageModel):
    """The next token of an encoder-decoder's output, or a given continuation.

    A text is the source, or a pair: the source and what the decoder has already written. The tokens of the
    source are explained.
    """

    def __init__(self, tokenizer: Any, start: Sequence[int]) -> None:
        super().__init__(tokenizer)
        self.start = list(start)
        """the tokens that every output begins with"""

    def source(self, text: Text) -> Text:
        return text if isinstance(text, str) else text[0]

    def _extend(self, batch: Batch, plans: Sequence[Continuation]) -> tuple[Batch, Tensor]:
        heads = [
            [*self.start, *self._written(text), *plan.given]
            for text, plan in zip(batch.texts, plans, strict=True)
        ]
        rows = [[*head, *plan.ids[:-1]] for head, plan in zip(heads, plans, strict=True)]
        longest = max(map(len, rows))
        fill = self.tokenizer.pad_token_id or 0
        device = batch.valid.device
        ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device=device)
        last = torch.tensor([len(head) - 1 for head in heads], device=device)
        steps = torch.arange(max(1, *(len(plan.ids) for plan in plans)), device=device)
        return replace(batch, inputs=batch.inputs | {"decoder_input_ids": ids}), last[:, None] + steps

    def _written(self, text: Text) -> list[int]:
        if isinstance(text, str) or not text[1]:
            return []
        with TOKENIZING:
            return list(self.tokenizer(text_target=text[1], add_special_tokens=False)["input_ids"])
