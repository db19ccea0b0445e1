"""Run a model on texts with some tokens removed. All removal of tokens happens in this module.

    masked = Masked(subject, subject.encode(texts), "mask")
    moved = masked.read(rows, keep, lambda rows, batch, output: task.divergence(reference[rows], output))

`how` says what happens to the removed tokens:

    "mask"     they become the mask token and leave attention
    "drop"     they are taken out of the text, and the tokens after them move up
    "fill"     a masked language model puts the likeliest tokens in their place (see Fill)
    Baseline   their states at a site are replaced; they stay in attention

A token outside attention has no effect on the others. So if the model takes positions as an input, only the
kept tokens are run: packed to the left, with their own positions. A test on the longest texts of every batch
checks that the output is the same. If it is not, and for tasks with an output for each token, the whole text
is run with masked tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import MethodError, ModelError
from ..progress import track
from .batch import Batch
from .families import at_places, takes_positions
from .lm_head import find_filler
from .memory import TOKENS_AT_ONCE, even, in_halves
from .subject import Subject

Manner = Literal["mask", "drop", "fill"]
Answer = Callable[[Tensor, Batch, Tensor], Tensor]
"""a function from the numbers of the texts (views,), their batch and their output to values (views, ...)"""


@dataclass(frozen=True, eq=False)
class Baseline:
    """Removed tokens have their state at a site replaced by a vector; they stay in attention."""

    vector: Tensor
    """(width,), a table by position (see `baseline_at`), or a tensor that broadcasts to (examples, tokens,
    width)"""
    site: int = 0
    state: Tensor | None = None
    """the unedited states (examples, tokens, width) if they are known; then the blocks below are not run"""


@dataclass(frozen=True, eq=False)
class Fill:
    """Removed tokens are replaced by the likeliest tokens of a masked language model.

    The language model reads the kept tokens and a mask token for each removed one, in one pass. So the model
    under study reads a complete text, in which the removed tokens are guessed from the kept ones.
    """

    lm_head: Any = None
    """the pre-trained model with its LM head, as for decoded_gradcam: a path, a hub id or the model itself;
    by default the one in the subject's own checkpoint"""


How = Manner | Tensor | Baseline | Fill
"""what happens to removed tokens"""


class Masked:
    """Texts, ready to be run with some of their tokens removed.

    Args:
        how: "mask", "drop", "fill", a Fill, a Baseline, or a vector that replaces the word embeddings.
        pack: whether to run only the kept tokens, if that gives the same output.
        tokens_at_once: the most tokens of one forward pass.
        like: other texts of the same subject, whose checks of what the model allows hold here too if the
            texts are no longer.
    """

    by_text: bool
    """whether the shape of the output does not depend on padding"""
    packed: bool
    """whether removed tokens are left out of the model's input"""
    longest: int
    """tokens of the longest text on which this was tried"""

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        how: How = "mask",
        pack: bool = True,
        tokens_at_once: int | None = None,
        like: Masked | None = None,
    ) -> None:
        self.subject, self.batch, self.how = subject, batch, _manner(how)
        self.fill = _fill_token(subject) if self.how == "mask" or isinstance(self.how, Fill) else 0
        self.language = find_filler(subject, self.how.lm_head) if isinstance(self.how, Fill) else None
        self.removable = self._removable()  # (examples, tokens) bool
        self.tokens_at_once = tokens_at_once or TOKENS_AT_ONCE.get(subject.device.type, 32768)
        self.by_text, self.packed, self.longest = False, False, 0
        if isinstance(self.how, Baseline | Fill):
            return
        self.longest = max(batch.valid.sum(1).tolist(), default=0)
        if like is not None and self._is_checked_by(like):
            self.by_text, self.packed, self.longest = like.by_text, like.packed, like.longest
        else:
            self.by_text = self._reads_by_text()
            if self.how == "drop":
                self._check_dropping()
            self.packed = self.how == "drop" or (pack and self._packing_is_exact())

    def _is_checked_by(self, like: Masked) -> bool:
        """Whether checks of other texts hold here: tokens are removed in the same manner, and where only the
        kept ones are run, no text is longer, as attention may reach no further than so many tokens."""
        return self.how == like.how and not (like.packed and self.longest > like.longest)

    def read(self, rows: Tensor, keep: Tensor, answer: Answer) -> Tensor:
        """Answers to views of texts: rows (views,) names the texts, keep (views, tokens) is bool.

        Views of similar length run in one batch, as large as `tokens_at_once` and the memory allow.
        """
        rows, keep = (one.to(self.batch.valid.device) for one in (rows, keep))
        if not len(rows):
            return torch.zeros(0, device=rows.device, dtype=torch.float32)

        def work(some: list[int]) -> Tensor:
            return answer(rows[some], *self.run(rows[some], keep[some]))

        parts = list(self._parts(rows, keep))
        shown = track(parts, "running the model")
        with torch.no_grad():
            found = torch.cat([result for part in shown for _, result in in_halves(work, part)])
        places = torch.tensor([place for part in parts for place in part])
        return found[places.argsort().to(found.device)]

    def _parts(self, rows: Tensor, keep: Tensor) -> Iterator[list[int]]:
        """The numbers of the views in batches, the longest first."""
        widths = torch.full(rows.shape, self.batch.shape[1], device=rows.device)
        if not isinstance(self.how, Baseline | Fill):
            widths = (keep if self.packed else self.batch.valid[rows]).sum(1)
        order, longest = widths.argsort(descending=True, stable=True).tolist(), widths.tolist()
        while order:
            limit = max(1, self.tokens_at_once // max(1, longest[order[0]]))
            size = even(len(order), limit)
            yield order[:size]
            order = order[size:]

    def run(self, rows: Tensor, keep: Tensor) -> tuple[Batch, Tensor]:
        """One forward pass over views. Returns the model's input and its output."""
        if isinstance(self.how, Baseline):
            return self._replaced(rows, keep, self.how)
        if self.language is not None:
            return self._filled(rows, keep, self.language)
        return self._visible(rows, keep) if self.packed else self._masked(rows, keep)

    def _visible(self, rows: Tensor, keep: Tensor) -> tuple[Batch, Tensor]:
        """Run only the tokens that are attended to, and those at which a language model is read. They are
        packed to the left and keep their own positions, unless tokens are dropped."""
        whole = self._hidden(rows, keep)
        shown = whole.inputs["attention_mask"].bool() | self._read_at(whole)
        places, there = packing(shown)
        every = torch.arange(len(rows), device=rows.device)[:, None]

        def gather(value: Tensor) -> Tensor:
            return value[every, places] if value.shape[:2] == whole.shape else value

        batch = replace(
            whole,
            inputs={name: gather(value) for name, value in whole.inputs.items()},
            valid=gather(keep) & there,
            special=gather(whole.special),
            segments=gather(whole.segments),
            marks={name: _moved(value, shown) for name, value in whole.marks.items()},
        )
        batch.inputs["attention_mask"] = batch.inputs["attention_mask"] * there
        if self.how == "drop":
            return batch, self.subject.run(batch).output
        with self.subject.frozen(), at_places(self.subject.module, places) as positions:
            batch.inputs.update(positions)
            return batch, self.subject.run(batch).output

    def _masked(self, rows: Tensor, keep: Tensor) -> tuple[Batch, Tensor]:
        """Run the whole text, with tokens hidden."""
        batch = self._hidden(rows, keep)
        batch = batch.trimmed() if self.by_text else batch
        return batch, self.subject.run(batch).output

    def _hidden(self, rows: Tensor, keep: Tensor) -> Batch:
        """The batch of whole texts, in which removed tokens become the mask token and leave attention.

        If nothing at all is kept, the mask tokens stay in attention: a model must attend to something.
        """
        batch = self.batch.take(rows.tolist())
        hidden = batch.valid & ~keep
        attended = batch.inputs["attention_mask"].bool() & ~hidden
        if self.how != "drop":
            attended |= ~attended.any(1, keepdim=True) & batch.valid
        inputs = batch.inputs | {
            "input_ids": torch.where(hidden, self.fill, batch.inputs["input_ids"]),
            "attention_mask": attended.to(batch.inputs["attention_mask"].dtype),
        }
        return replace(batch, inputs=inputs)

    @staticmethod
    def _read_at(batch: Batch) -> Tensor:
        """(views, tokens) bool: where a language model's output is read."""
        found = torch.zeros_like(batch.valid)
        if "positions" in batch.marks:
            rows, steps = (batch.marks["positions"] >= 0).nonzero(as_tuple=True)
            found[rows, batch.marks["positions"][rows, steps]] = True
        return found

    def _replaced(self, rows: Tensor, keep: Tensor, how: Baseline) -> tuple[Batch, Tensor]:
        batch, vector = self.batch.take(rows.tolist()), how.vector
        if vector.dim() == 3 and len(vector) == len(self.batch):
            vector = vector[rows.to(vector.device)]
        state = None if how.state is None else how.state[rows]
        return batch, edited_run(self.subject, batch, how.site, state, keep, vector)

    def _filled(self, rows: Tensor, keep: Tensor, language: Subject) -> tuple[Batch, Tensor]:
        """Run the whole text, with the language model's tokens in place of removed ones."""
        batch = self.batch.take(rows.tolist())
        hidden, ids = batch.valid & ~keep, batch.inputs["input_ids"]
        asked = replace(batch, inputs=batch.inputs | {"input_ids": torch.where(hidden, self.fill, ids)})
        logits = language.run(asked).output  # (views, tokens, vocabulary)
        logits[..., self.subject.tokenizer.all_special_ids] = -torch.inf
        filled = torch.where(hidden, logits.argmax(-1).to(ids.device), ids)
        batch = replace(batch, inputs=batch.inputs | {"input_ids": filled})
        return batch, self.subject.run(batch).output

    def _removable(self) -> Tensor:
        """(examples, tokens) bool: the tokens that can be removed. Special tokens, and tokens that are the
        mask token already, cannot; with a Baseline the task decides."""
        batch = self.batch
        if isinstance(self.how, Baseline):
            return self.subject.task.removable(batch)
        if not {"input_ids", "attention_mask"} <= batch.inputs.keys():
            raise ModelError(
                f"tokens are hidden through input_ids and attention_mask; this subject takes "
                f"{', '.join(batch.inputs)}. Give a vector that stands for a removed token (replace=tensor)"
            )
        masks = batch.inputs["input_ids"] == (getattr(self.subject.tokenizer, "mask_token_id", None) or -1)
        return batch.valid & ~batch.special & ~masks

    @torch.no_grad()
    def _reads_by_text(self) -> bool:
        """Whether the shape of the output does not depend on padding."""
        if self.subject.task.fixed_shape:
            return True
        shortest = self.batch.take([int(self.batch.valid.sum(1).argmin())])
        narrow = shortest.trimmed()
        if narrow.shape == shortest.shape:
            return False
        return self.subject.run(narrow).output.shape == self.subject.run(shortest).output.shape

    @torch.no_grad()
    def _check_dropping(self) -> None:
        """Refuse "drop" for tasks that read certain positions: dropped tokens move the others."""
        first, keep = self.batch.valid.new_zeros(1).long(), self.batch.valid[:1] & ~self.removable[:1]
        whole = self._masked(first, keep)[1].shape
        if self.batch.marks or self._visible(first, keep)[1].shape != whole:
            raise MethodError(
                f"tokens cannot be dropped for {type(self.subject.task).__name__}, which reads positions; "
                f"give replace='mask'"
            )

    @torch.no_grad()
    def _packing_is_exact(self) -> bool:
        """Whether packing gives the same output. It is tried on the longest texts, with every other token
        hidden, and with all but the first hidden."""
        written = "decoder_input_ids" in self.batch.inputs  # an output is then read at the decoder's tokens
        if written or not takes_positions(self.subject.module):
            return False
        rows = self.batch.valid.sum(1).argsort(descending=True)[:4]
        valid, place = self.batch.valid[rows], torch.arange(self.batch.shape[1], device=rows.device)
        for pattern in (place % 2 == 1, place <= 1):
            keep = (~self.removable[rows] | pattern) & valid
            fast, slow = self._visible(rows, keep)[1], self._masked(rows, keep)[1]
            if fast.shape != slow.shape or not torch.allclose(fast, slow, rtol=1e-3, atol=1e-3):
                return False
        return True


def _moved(positions: Tensor, shown: Tensor) -> Tensor:
    """Positions (views, steps), -1 for none, among the tokens that are shown (views, tokens)."""
    found = (shown.cumsum(1) - 1).gather(1, positions.clamp(min=0))
    return torch.where(positions < 0, -1, found)


def packing(keep: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the kept tokens (rows, width), in order, and which entries are not padding."""
    lengths = keep.sum(1)
    width = max(1, int(lengths.max()))
    places = torch.argsort((~keep).to(torch.uint8), dim=1, stable=True)[:, :width]
    return places, torch.arange(width, device=keep.device) < lengths[:, None]


def edited_run(
    subject: Subject,
    batch: Batch,
    edit: int,
    state: Tensor | None,
    keep: Tensor,
    baseline: Tensor,
    check: bool = True,
) -> Tensor:
    """The output after the states at one site are mixed with a baseline.

    Args:
        state: the unedited states if they are known; then the blocks below the site are not run.
        keep: (examples, tokens), bool or between 0 and 1. Tokens that may not be removed are always kept.
    """
    removable, known = subject.task.removable(batch), keep.dtype == torch.bool
    everywhere = keep | ~removable if known else torch.where(removable, keep, 1.0)
    edited = (lambda s: mix(everywhere, s, baseline)) if state is None else mix(everywhere, state, baseline)
    return subject.run(batch, replace={edit: edited}, check=check).output


def mix(keep: Tensor, state: Tensor, baseline: Tensor) -> Tensor:
    """keep * state + (1 - keep) * baseline (section 2): keep (examples, tokens), state (..., width)."""
    baseline = baseline_at(baseline, state.shape[-2]).to(state)
    if keep.dtype == torch.bool:
        return torch.where(keep[..., None], state, baseline)
    gate = keep[..., None].to(state.dtype)
    return gate * state + (1 - gate) * baseline


def baseline_at(baseline: Tensor, tokens: int) -> Tensor:
    """A baseline for texts of `tokens` tokens. A table by position (positions, width) becomes (tokens,
    width); its last row stands for all later positions. Other baselines stay as they are."""
    if baseline.dim() != 2:
        return baseline
    return baseline[torch.arange(tokens, device=baseline.device).clamp(max=len(baseline) - 1)]


def _manner(how: Any) -> Manner | Baseline | Fill:
    if isinstance(how, Tensor):
        return Baseline(how)
    if isinstance(how, Baseline | Fill) or how in get_args(Manner):
        return Fill() if how == "fill" else how
    raise MethodError(
        f"cannot remove tokens by {how!r}; give 'mask', 'drop', 'fill', a Fill, a Baseline or a vector that "
        f"stands for a removed token's word embedding"
    )


def _fill_token(subject: Subject) -> int:
    """The id of the mask token, or of the unknown or end token if the model has no mask token."""
    for name in ("mask", "unk", "eos", "pad"):
        found = getattr(subject.tokenizer, f"{name}_token_id", None)
        if found is not None:
            return int(found)
    raise ModelError(
        "this subject has no tokenizer with a mask token to hide tokens with; give a baseline vector that "
        "stands for a removed token (replace=tensor)"
    )
