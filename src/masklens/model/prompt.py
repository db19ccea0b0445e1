"""Prompts for a language model: a string, or the messages of a chat in the model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ModelError, TextError
from ..records.units import Turn
from ..words import Span
from .batch import Batch, TokenizerEncoder, check_unicode
from .subject import Subject

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    """whether a token is special or added by the chat template; such tokens are never removed"""
    turns: tuple[Turn, ...] = ()


def read_prompt(subject: Subject, given: str | Messages) -> Prompt:
    """A prompt from a string, or from messages with the roles and contents of a chat.

    A chat template is applied once, and its result gets no further special tokens. Neither does a string
    that begins with the start token. An end token that the tokenizer adds is removed: the answer follows.
    """
    encoder = subject._encode
    if not isinstance(encoder, TokenizerEncoder):
        raise ModelError(
            "a prompt needs a subject with a Hugging Face tokenizer; use Subject(model, tokenizer)"
        )
    if isinstance(given, str):
        return _encoded(encoder, given, ())
    messages = check_messages(given)
    return _encoded(
        encoder, fill(encoder.tokenizer, messages), tuple(find_turns(encoder.tokenizer, messages))
    )


def _encoded(encoder: TokenizerEncoder, text: str, turns: tuple[Turn, ...]) -> Prompt:
    check_unicode(text)
    row = encoder.tokenize(text, add_special_tokens=not turns)
    special = encoder.special(row)
    count = len(row["input_ids"])
    while count and row["special_tokens_mask"][count - 1] and row["offset_mapping"][count - 1][1] == 0:
        count -= 1
    if not count:
        raise TextError(f"the prompt {text!r:.60} has no tokens; give one with at least one")
    spans = tuple((int(start), int(end)) for start, end in row["offset_mapping"][:count])
    framed = [bool(turns) and not _within(text, span, turns) for span in spans]
    marked = tuple(a or b for a, b in zip(special[:count], framed, strict=True))
    return Prompt(text, tuple(row["input_ids"][:count]), spans, marked, turns)


def _within(text: str, span: Span, turns: Sequence[Turn]) -> bool:
    """Whether a token covers characters of a turn."""
    start, end = span
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return any(turn.start < end and start < turn.end for turn in turns)


def check_messages(given: Any) -> list[dict[str, str]]:
    """Messages as plain dicts. The first entry that is not a message raises a TextError."""
    if not isinstance(given, list | tuple) or not given:
        raise TextError(f"{given!r:.60} is not a prompt; give a string, or a list of messages")
    for i, one in enumerate(given):
        strings = isinstance(one, Mapping) and all(isinstance(one.get(k), str) for k in ("role", "content"))
        if not strings:
            raise TextError(f"message {i} is {one!r:.80}; give {{'role': ..., 'content': ...}}, both strings")
    return [dict(one) for one in given]


def fill(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    """The chat template with the messages in it, ready for the answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise TextError("this tokenizer has no chat template for messages; give the prompt as one string")
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of its own: it may raise anything
        raise TextError(f"the chat template does not take these messages: {error}") from error


def find_turns(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[Turn]:
    """The characters of each message's content in the filled template.

    The template is filled a second time, with markers instead of contents, to see what it adds itself.
    """
    marks = [f"\u2e28{i}\u2e29" for i in range(len(messages))]
    pairs = list(zip(messages, marks, strict=True))
    framed = fill(tokenizer, [{**one, "content": mark} for one, mark in pairs])
    text, turns, rest = "", [], framed
    for one, mark in pairs:
        before, found, rest = rest.partition(mark)
        if not found:
            raise TextError(f"the chat template leaves out the message {one['content']!r:.60}; give a string")
        text += before
        turns.append(Turn(one["role"], len(text), len(text) + len(one["content"])))
        text += one["content"]
    whole = fill(tokenizer, messages)
    return turns if text + rest == whole else _sought(whole, messages)


def _sought(text: str, messages: Sequence[Mapping[str, str]]) -> list[Turn]:
    """The same for a template that changes contents, most often by stripping white space."""
    turns, at = [], 0
    for one in messages:
        content = one["content"].strip()
        start = text.find(content, at)
        if start < 0:
            raise TextError(
                f"the chat template changes the message {content!r:.60}; give the prompt as a string"
            )
        at = start + len(content)
        turns.append(Turn(one["role"], start, at))
    return turns


def beginnings(
    subject: Subject, prompt: Prompt, names: Sequence[str], lengths: Sequence[int], text: str
) -> Batch:
    """Several beginnings of a text as a batch, one example for each length, padded on the right.

    Args:
        prompt: the whole text with all its tokens; `names` are the names of the tokens.
        text: the text that is shown in the records.
    """
    encoder: Any = subject._encode
    count = max(lengths)
    valid = torch.arange(count) < torch.tensor(lengths)[:, None]  # (examples, tokens)
    ids = torch.where(valid, torch.tensor(prompt.ids[:count]), encoder.pad_id)
    known = {"input_ids": ids, "attention_mask": valid.long(), "token_type_ids": torch.zeros_like(ids)}
    wanted = [name for name in encoder.tokenizer.model_input_names if name in known and encoder.accepts(name)]
    return Batch(
        inputs={name: known[name] for name in dict.fromkeys([*wanted, "input_ids", "attention_mask"])},
        valid=valid,
        special=torch.tensor(prompt.special[:count]) | ~valid,
        segments=torch.zeros_like(ids),
        tokens=tuple(tuple(names[:n]) for n in lengths),
        offsets=tuple(prompt.offsets[:n] for n in lengths),
        texts=tuple(text[: _end(prompt.offsets[:n])] for n in lengths),
        truncated=(False,) * len(lengths),
    ).to(subject.device)


def _end(offsets: Sequence[Span]) -> int:
    return max((end for _, end in offsets), default=0)
