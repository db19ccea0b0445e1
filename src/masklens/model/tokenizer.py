"""Check that a tokenizer and a model belong together, before anything is computed."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..errors import ModelError

TOKENIZING = threading.RLock()
"""one thread at a time: how to cut and pad is a state of a tokenizer"""
WORD = re.compile(r"[^\W_]{2,}")
TRIED = 50
"""how many words of the vocabulary are tokenised as a test"""
NEARLY_ALL = 0.9
"""a larger share of unknown tokens is treated as an error"""
REMEDY = "use the tokenizer that the model was trained with: Subject(model, tokenizer)"
_checked: WeakKeyDictionary[Any, tuple[int, int | None]] = WeakKeyDictionary()
"""tokenizers that passed the check, which is slow for a large vocabulary, with their size and the model's"""


def check_tokenizer(tokenizer: Any, embeddings: nn.Module) -> None:
    """Raise a ModelError for a tokenizer that is missing, empty, another model's, or that knows no word."""
    if tokenizer is None:
        raise ModelError(f"there is no tokenizer; {REMEDY}, or Subject.from_module with an encode function")
    rows = getattr(embeddings, "num_embeddings", None)
    if _checked.get(tokenizer) == (len(tokenizer), rows):
        return
    vocabulary = tokenizer.get_vocab()
    words = _words(tokenizer, vocabulary)
    if not words:
        raise ModelError(
            f"the tokenizer knows no word: its vocabulary is {len(vocabulary)} special tokens, as if its "
            f"files were missing. Put tokenizer.json beside the model, or {REMEDY}"
        )
    _check_size(vocabulary, rows)
    _check_words(tokenizer, words)
    _checked[tokenizer] = len(tokenizer), rows


def _words(tokenizer: Any, vocabulary: Mapping[str, int]) -> list[str]:
    """Some pieces of text in the vocabulary, from all over it."""
    marks = {*tokenizer.all_special_tokens, *getattr(tokenizer, "added_tokens_encoder", ())}
    found = [piece for piece in islice(vocabulary, 20_000) if piece not in marks and WORD.search(piece)]
    return found[:: max(1, len(found) // TRIED)] or [p for p in vocabulary if p not in marks and p.isalnum()]


def _check_size(vocabulary: Mapping[str, int], rows: int | None) -> None:
    if rows is None:
        return
    highest = max(vocabulary.values())
    if highest >= rows:
        raise ModelError(
            f"the tokenizer has ids up to {highest}, the model {rows} word embeddings: they do not fit; "
            f"{REMEDY}, or resize the model's embeddings if tokens were added"
        )
    if len(vocabulary) < NEARLY_ALL * rows:
        warnings.warn(
            f"the tokenizer has {len(vocabulary)} tokens, the model {rows} word embeddings; do they belong "
            f"together?",
            stacklevel=5,
        )


def _check_words(tokenizer: Any, words: list[str]) -> None:
    """Raise a ModelError if the tokenizer does not find the words of its own vocabulary."""
    unknown = tokenizer.unk_token_id
    texts = [tokenizer.convert_tokens_to_string([word]).removeprefix("##").strip() for word in words]
    with TOKENIZING:
        rows = [tokenizer(t, add_special_tokens=False, verbose=False)["input_ids"] for t in texts if t]
    lost = sum(not row or (unknown is not None and unknown in row) for row in rows)
    if lost > NEARLY_ALL * len(rows):
        raise ModelError(
            f"the tokenizer turns {lost} of {len(rows)} words of its own vocabulary into unknown tokens, "
            f"such as {texts[0]!r}: it is broken or put together from different ones; {REMEDY}"
        )


def load_tokenizer(path: str | os.PathLike[str], everywhere: dict[str, Any]) -> Any:
    """The tokenizer beside a model."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **everywhere)
    except Exception as error:  # the Rust library tokenizers raises plain Exceptions
        if "trust_remote_code" in str(error):
            raise
        raise ModelError(
            f"the model at {os.fspath(path)!r} has no tokenizer that can be loaded "
            f"({str(error).strip().splitlines()[0]:.120}); put tokenizer.json beside it, or use "
            f"Subject(model, tokenizer)"
        ) from error
    if "gguf_file" in everywhere:
        where = {name: value for name, value in everywhere.items() if name != "trust_remote_code"}
        add_start_token(tokenizer, transformers.utils.cached_file(path, where.pop("gguf_file"), **where))
    return tokenizer


START_BY_DEFAULT = {
    "llama", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon",
}  # fmt: skip
"""kinds of tokenizers that add a start token if their GGUF file does not say otherwise, as in llama.cpp"""


def add_start_token(tokenizer: Any, gguf: str | os.PathLike[str]) -> None:
    """Let the tokenizer add the start token if its GGUF file asks for one, which transformers does not read.

    Without it some models, such as Gemma, predict nonsense.
    """
    if not _asks_for_start(os.fspath(gguf)):
        return
    start = tokenizer.bos_token_id
    if start is not None and not _starts_with(tokenizer, start):
        tokenizer.add_bos_token = True
    if start is None or not _starts_with(tokenizer, start):
        warnings.warn(
            f"{os.fspath(gguf)!r} asks for a start token before each text, but its tokenizer cannot add one; "
            f"write it into the texts",
            stacklevel=6,
        )


def _starts_with(tokenizer: Any, token: int) -> bool:
    return tokenizer("a")["input_ids"][:1] == [token]


def _asks_for_start(gguf: str) -> bool:
    about = _metadata(gguf)
    asked, model, pre = (about.get(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "model", "pre"))
    return bool(START_BY_DEFAULT & {model, pre}) if asked is None else bool(asked)


def _metadata(gguf: str) -> dict[str, Any]:
    """What a GGUF file says of itself, without its vocabulary."""
    try:
        from transformers.integrations.gguf.reader import read_gguf_metadata
    except ImportError:  # in older versions; gguf reads the whole vocabulary for it, which takes seconds
        from gguf import GGUFReader

        fields = GGUFReader(gguf).fields
        return {name: field.contents() for name, field in fields.items() if _is_one_value(field)}
    return read_gguf_metadata(gguf)[0]


def _is_one_value(field: Any) -> bool:
    return len(field.types) == 1
