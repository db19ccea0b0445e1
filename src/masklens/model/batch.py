"""From texts to model inputs: `Batch`, and an encoder that uses a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..attribution import Text
from ..errors import TextError
from .alignment import align
from .tokenizer import NEARLY_ALL, TOKENIZING

Lists = dict[str, list[Any]]
"""by name, for each text a list with an entry for each of its tokens"""
FEW_TOKENS = 10
"""of fewer, all may be unknown"""


@dataclass(frozen=True)
class Batch:
    """Encoded texts, padded to one length. Every tensor has the examples first."""

    inputs: dict[str, Tensor]
    """what the module is called with"""
    valid: Tensor
    """(examples, tokens) bool: False at padding"""
    special: Tensor
    """(examples, tokens) bool: special tokens such as [CLS], which stand for no text"""
    segments: Tensor
    """(examples, tokens) int: which text of a pair"""
    tokens: tuple[tuple[str, ...], ...]
    """for each example, the tokens that are not padding"""
    offsets: tuple[tuple[tuple[int, int], ...], ...]
    texts: tuple[Text, ...]
    truncated: tuple[bool, ...]
    marks: dict[str, Tensor] = field(default_factory=dict)
    """what the task noted about the texts, such as the positions it reads"""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def shape(self) -> torch.Size:
        """(examples, tokens)"""
        return self.valid.shape

    def take(self, rows: Sequence[int]) -> Batch:
        """The given examples, in the given order, repeats allowed."""
        index = moved(torch.as_tensor(rows, dtype=torch.long), self.valid.device)
        lists = ("tokens", "offsets", "texts", "truncated")
        chosen: dict[str, Any] = {}
        for name in lists:
            values = getattr(self, name)
            chosen[name] = tuple([values[i] for i in rows])
        return replace(self._mapped(lambda value: value[index.to(value.device)]), **chosen)

    def by_text(self, values: Tensor) -> list[tuple[Any, ...]]:
        """Of values (examples, tokens) on the CPU those of each text, without padding."""
        plain = iter(values[self.valid].tolist())
        return [tuple(islice(plain, count)) for count in self.valid.sum(1).tolist()]

    def _mapped(self, change: Callable[[Tensor], Tensor], marks: bool = True) -> Batch:
        """The batch with every tensor changed, those of `marks` too unless they have no columns of tokens."""
        return replace(
            self,
            inputs={name: change(value) for name, value in self.inputs.items()},
            valid=change(self.valid),
            special=change(self.special),
            segments=change(self.segments),
            marks={name: change(value) for name, value in self.marks.items()} if marks else self.marks,
        )

    @property
    def by_token(self) -> bool:
        """Whether every input has one column for each token, so that columns of padding can be removed."""
        return "attention_mask" in self.inputs and all(
            value.shape[:2] == self.shape and not name.startswith("decoder")
            for name, value in self.inputs.items()
        )

    @property
    def columns(self) -> Tensor:
        """The columns that are not padding in every row: (tokens,) bool, where `by_token`."""
        return (self.valid | self.inputs["attention_mask"].bool()).any(0)

    @property
    def lengths(self) -> Tensor:
        """How many columns each text needs, (examples,) on the CPU; what comes after them is padding."""
        if not self.by_token:
            return torch.full((len(self),), self.shape[1])
        attended = (self.valid | self.inputs["attention_mask"].bool()).cpu()
        return (attended * torch.arange(1, self.shape[1] + 1)).amax(1)

    def trimmed(self) -> Batch:
        """The batch without the columns that are padding in every row, if the inputs allow it.

        The continuation given to a language model is attended to, so it is not padding.
        """
        if not self.by_token or bool(self.columns.all()):
            return self
        columns = self.columns
        return self._mapped(lambda value: value[:, columns], marks=False)

    def first_columns(self, count: int) -> Batch:
        """Only the first columns, if the inputs allow it. The other columns must be padding."""
        if count == self.shape[1] or not self.by_token:
            return self
        return self._mapped(lambda value: value[:, :count], marks=False)

    def widened(self, columns: int, pad_id: int = 0) -> Batch:
        """The batch with columns of padding added on the right, so that there are so many."""
        more = (0, columns - self.shape[1])
        ids = {"input_ids": pad_id}
        return replace(
            self,
            inputs={name: F.pad(value, more, value=ids.get(name, 0)) for name, value in self.inputs.items()},
            valid=F.pad(self.valid, more),
            special=F.pad(self.special, more, value=True),
            segments=F.pad(self.segments, more),
        )

    def to(self, device: torch.device | str) -> Batch:
        return self._mapped(lambda value: moved(value, device))

    def arriving(self) -> Batch:
        """The batch on the CPU (see `arriving`)."""
        return self._mapped(arriving)


def moved(value: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. A copy to a GPU does not wait for the work queued there."""
    if torch.device(device).type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def arriving(value: Tensor) -> Tensor:
    """The tensor on the CPU. From a GPU it is there only when the work queued so far is done."""
    return value.to("cpu", non_blocking=value.is_cuda)


def as_texts(texts: Text | Iterable[Text]) -> list[Text]:
    """A list from one text or from any number of them, also from a generator."""
    if isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and isinstance(texts[0], str)):
        return [texts]  # type: ignore[list-item]
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        raise TextError(f"{texts!r:.80} is no text; give a string, a pair of strings, or a list of them")
    return [_as_text(i, text) for i, text in enumerate(texts)]


def _as_text(number: int, text: Any) -> Text:
    if isinstance(text, str):
        return text
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return text[0], text[1]
    hint = ". Of a data set, give a column: dataset['text']" if isinstance(text, Mapping) else ""
    raise TextError(f"text {number} is {text!r:.80}; a text is a string or a pair of strings{hint}")


class TokenizerEncoder:
    """Encode strings, or pairs of strings, with a Hugging Face tokenizer, padded on the right.

    Args:
        max_length: how many tokens the model takes. A longer text is an error, or is cut with `truncate`.
        pad_id: the id of the padding token. The default is that of the tokenizer.
        accepts: says which of the tokenizer's outputs the model takes.
        cut: which text of a pair is cut, in the tokenizer's words: "longest_first" or "only_second".
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None,
        truncate: bool = False,
        pad_id: int | None = None,
        accepts: Callable[[str], bool] = lambda name: True,
        cut: str = "longest_first",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.truncate = truncate
        self.pad_id = (tokenizer.pad_token_id or 0) if pad_id is None else pad_id
        self.accepts = accepts
        self.cut = cut
        self.markers = marker_ids(tokenizer)
        self.unknown = tokenizer.unk_token_id

    def __call__(self, texts: Sequence[Text]) -> Batch:
        for text in texts:
            check_unicode(text)
        lists = self._tokenize_all(texts)
        truncated = self._fit(texts, lists)
        padded = _Padded([len(ids) for ids in lists["input_ids"]])
        ids = padded(lists["input_ids"], self.pad_id)
        added = padded(lists["special_tokens_mask"], 1).bool()
        self._check_known(texts, ids, added)
        wanted = [name for name in self.tokenizer.model_input_names if name in lists and self.accepts(name)]
        inputs = {name: ids if name == "input_ids" else padded(lists[name], 0) for name in wanted}
        inputs["attention_mask"] = padded.valid.long()
        return Batch(
            inputs=inputs,
            valid=padded.valid,
            special=added | torch.isin(ids, torch.tensor(sorted(self.markers), dtype=torch.long)),
            segments=padded(lists["segments"], 0),
            tokens=tuple(map(tuple, lists["tokens"])),
            offsets=tuple(map(tuple, lists["offset_mapping"])),
            texts=tuple(texts),
            truncated=truncated,
        )

    def _tokenize_all(self, texts: Sequence[Text]) -> Lists:
        """The tokenizer's lists of each text. A fast tokenizer uses all cores for texts of one kind."""
        kinds = {isinstance(text, str) for text in texts}
        if not getattr(self.tokenizer, "is_fast", False) or len(kinds) > 1 or len(texts) < 2:
            rows = [self.tokenize(text) for text in texts]
            return {name: [row[name] for row in rows] for name in rows[0]}
        firsts, seconds = (list(texts), None) if kinds == {True} else zip(*texts, strict=True)
        with TOKENIZING:
            found = self.tokenizer(
                list(firsts),
                None if seconds is None else list(seconds),
                return_attention_mask=False,
                verbose=False,
            )
        return self._started_once({**found, **_read(found.encodings, pair=seconds is not None)})

    def _fit(self, texts: Sequence[Text], lists: Lists) -> tuple[bool, ...]:
        """Cut the lists of the texts that are too long for the model; says which they are."""
        counts = [len(ids) for ids in lists["input_ids"]]
        most = self.max_length or max(counts)
        for i, count in enumerate(counts):
            if not 0 < count <= most:
                row = self._cut(texts[i], {name: values[i] for name, values in lists.items()})
                for name, values in lists.items():
                    values[i] = row[name]
        return tuple([count > most for count in counts])

    def _cut(self, text: Text, row: dict[str, Any]) -> dict[str, Any]:
        """The lists of a text that is too long at a length that the model takes."""
        count = len(row["input_ids"])
        if count == 0:
            raise TextError(f"the text {text!r} has no tokens; give one with at least one")
        if not self.truncate:
            raise TextError(
                f"a text of {count} tokens starting with {_start(text)} is longer than the model takes "
                f"({self.max_length}); shorten it, give Subject truncate=True to cut it, or, to find answers "
                f"in it, explain it with windows=128"
            )
        pair = not isinstance(text, str)
        if pair and self.cut == "only_second":
            self.room(text, row)
        cut = self.cut if pair else True
        return self.tokenize(text, truncation=cut, max_length=self.max_length)

    def _check_known(self, texts: Sequence[Text], ids: Tensor, added: Tensor) -> None:
        """Nearly all of a longer text unknown means another language or another model's tokenizer.

        Args:
            ids: (examples, tokens)
            added: (examples, tokens) bool: special tokens that the tokenizer added, and padding
        """
        if self.unknown is None or self.unknown in self.markers:
            return
        unknown, plain = ((ids == self.unknown) & ~added).sum(1), (~added).sum(1)
        for i in ((unknown >= FEW_TOKENS) & (unknown > NEARLY_ALL * plain.double())).nonzero()[:, 0].tolist():
            raise TextError(
                f"the tokenizer does not know {unknown[i]} of the {plain[i]} tokens of the text that starts "
                f"with {_start(texts[i])}; does it belong to this model, and is the text in a language it "
                f"knows?"
            )

    def room(self, text: Text, row: Mapping[str, Any]) -> int:
        """How many tokens of a pair's second text fit beside the first text and the special tokens."""
        marked = zip(row["segments"], row["special_tokens_mask"], strict=True)
        beside = sum(segment == 0 or bool(special) for segment, special in marked)
        if self.max_length is None or beside < self.max_length:
            return (self.max_length or len(row["segments"])) - beside
        raise TextError(
            f"the first text of the pair, {_start(text)}, and the markers have {beside} tokens; the model "
            f"takes {self.max_length}, so that nothing is left of the second: shorten the first"
        )

    def tokenize(self, text: Text, **options: Any) -> dict[str, Any]:
        """The tokenizer's lists for one text, however long, with tokens, segments and offsets."""
        first, second = (text, None) if isinstance(text, str) else text
        # `verbose` off: the length is checked here. No mask: nothing is padded yet.
        options |= {"return_special_tokens_mask": True, "return_attention_mask": False, "verbose": False}
        with TOKENIZING:
            row = self.tokenizer(first, second, **options)
        lists = {name: [values] for name, values in row.items()}
        if getattr(self.tokenizer, "is_fast", False):
            lists |= _read(row.encodings, pair=second is not None)
        else:
            lists |= {name: [values] for name, values in self._located(row, first, second).items()}
        return {name: values for name, (values,) in self._started_once(lists).items()}

    def _started_once(self, lists: Lists) -> Lists:
        """Without the start mark that the tokenizer adds to a text that has one: a filled chat template."""
        start, marked = self.tokenizer.bos_token_id, lists["special_tokens_mask"]
        for i, ids in enumerate([] if start is None else lists["input_ids"]):
            if list(ids[:2]) == [start, start] and marked[i][0]:
                for values in lists.values():
                    values[i] = values[i][1:]
        return lists

    def _located(self, row: Any, first: str, second: str | None) -> dict[str, Any]:
        """Segments and offsets for a tokenizer that does not give them."""
        ids, marked = row["input_ids"], row["special_tokens_mask"]
        count = len(self.tokenizer(first, add_special_tokens=False, verbose=False)["input_ids"])
        plain = [i for i, mark in enumerate(marked) if not mark]
        which: list[int | None] = [None] * len(ids)
        for order, i in enumerate(plain):
            types = row.get("token_type_ids") or [0]
            which[i] = types[i] if any(types) else int(second is not None and order >= count)
        pieces = self.tokenizer.convert_ids_to_tokens(ids)
        offsets = [(0, 0)] * len(ids)
        for segment, source in enumerate((first, second or "")):
            own = [i for i in plain if which[i] == segment]
            names = [None if ids[i] == self.tokenizer.unk_token_id else pieces[i] for i in own]
            for i, span in zip(own, align(source, names), strict=True):
                offsets[i] = span
        return {"tokens": pieces, "segments": _segments(which), "offset_mapping": offsets}

    def special(self, row: Mapping[str, Any]) -> list[bool]:
        """Which tokens of a text stand for no text."""
        pairs = zip(row["special_tokens_mask"], row["input_ids"], strict=True)
        return [bool(added) or token in self.markers for added, token in pairs]


def _start(text: Text) -> str:
    return repr((text if isinstance(text, str) else text[0])[:40])


def check_unicode(text: Text) -> None:
    """Refuse half a surrogate pair: a JSON file can hold one, but it is not a character."""
    try:
        (text if isinstance(text, str) else "".join(text)).encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"the text {text!r:.60} is not valid Unicode ({error.reason}); fix or remove the character"
        ) from error


def marker_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that never stand for text. Those for unknown words and masks do, so they are not here."""
    ends = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "cls", "sep", "pad")}
    text = {tokenizer.unk_token_id, tokenizer.mask_token_id} - ends
    return frozenset(int(i) for i in {*tokenizer.all_special_ids, *ends} - text if i is not None)


class _Padded:
    """Makes one tensor (examples, tokens) of lists, one for each example, padded on the right."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.valid = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]

    def __call__(self, lists: Sequence[Sequence[int]], fill: int) -> Tensor:
        out = np.full(self.valid.shape, fill, dtype=np.int64)
        out[self.valid.numpy()] = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
        return torch.from_numpy(out)


def _read(encodings: Sequence[Any], pair: bool) -> Lists:
    """What a fast tokenizer says about the tokens of each text. Equal spans are one object: each object more
    makes Python's garbage collector run more often."""
    one = dict[tuple[int, int], tuple[int, int]]()
    return {
        "tokens": [e.tokens for e in encodings],
        "special_tokens_mask": [e.special_tokens_mask for e in encodings],
        "offset_mapping": [tuple(map(one.setdefault, (spans := e.offsets), spans)) for e in encodings],
        "segments": [_segments(e.sequence_ids) if pair else [0] * len(e) for e in encodings],
    }


def _segments(which: Sequence[int | None]) -> list[int]:
    """0 for the first text, 1 for the second. A special token belongs to the text before it."""
    current, out = 0, []
    for one in which:
        current = current if one is None else one
        out.append(current)
    return out
