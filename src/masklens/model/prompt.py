"""Prompts for a language model: a string, or the messages of a chat in the model's own template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..errors import ModelError, TextError
from ..records.units import Turn, first_character
from ..words import Span
from .batch import Batch, TokenizerEncoder, check_unicode
from .subject import Subject

Messages = Sequence[Mapping[str, str]]
SET_HERE = ("add_generation_prompt", "continue_final_message", "conversation", "tokenize")
"""arguments of `apply_chat_template` that follow from the messages"""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    """whether a token is special or added by the chat template; such tokens are never removed"""
    turns: tuple[Turn, ...] = ()


def read_prompt(
    subject: Subject, given: str | Messages, template_options: Mapping[str, Any] | None = None
) -> Prompt:
    """A prompt from a string, or from messages with the roles and contents of a chat.

    A chat template is applied once, and its result gets no further special tokens. Neither does a string
    that begins with the start token. An end token that the tokenizer adds is removed: the answer follows.
    Messages that end with one of the assistant are continued there.
    """
    encoder = subject._encode
    if not isinstance(encoder, TokenizerEncoder):
        raise ModelError(
            "a prompt needs a subject with a Hugging Face tokenizer; use Subject(model, tokenizer)"
        )
    if isinstance(given, str):
        if template_options:
            raise TextError("template_options are for messages; a string is read without the chat template")
        return _encoded(encoder, given, ())
    chat = Chat(encoder.tokenizer, template_options)
    messages = check_messages(given)
    return _encoded(encoder, chat.fill(messages), tuple(chat.find_turns(messages)))


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
    start, end = first_character(text, span), span[1]
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


class Chat:
    """The chat template of a tokenizer, with options such as enable_thinking, tools or documents."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise TextError("this tokenizer has no chat template for messages; give the prompt as one string")
        if not isinstance(options or {}, Mapping):
            raise TextError(f"template_options is {options!r:.60}; give names and values: {{'tools': [...]}}")
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self._check_options()

    def _check_options(self) -> None:
        """Raise a TextError for an option that the template does not read."""
        for name in self.options:
            if name in SET_HERE:
                raise TextError(f"{name} follows from the messages; leave it out of template_options")
            if not re.search(rf"\b{re.escape(str(name))}\b", self._template()):
                raise TextError(f"the chat template has no option {name!r}; leave it out of template_options")

    def _template(self) -> str:
        """The template itself; tokenizers may have several, one of them for tools."""
        try:
            return self.tokenizer.get_chat_template(None, self.options.get("tools"))
        except ValueError as error:
            raise TextError(f"the tokenizer's chat template cannot be used: {error}") from error

    def fill(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The template with the messages in it, ready for the answer.

        A last message of the assistant is the beginning of the answer: it is left open.
        """
        begun = messages[-1]["role"] == "assistant"
        how = {"add_generation_prompt": not begun, "continue_final_message": begun}
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, **how, **self.options)
        except Exception as error:  # a template is a program of its own: it may raise anything
            raise TextError(f"the chat template does not take these messages: {error}") from error

    def find_turns(self, messages: Sequence[Mapping[str, str]]) -> list[Turn]:
        """The characters of each message's content in the filled template."""
        whole, frames = self.fill(messages), pairwise(self._frames(messages))
        turns, at = [], 0
        for one, (before, after) in zip(messages, frames, strict=True):
            found = whole.find(before, at)
            at = at if found < 0 else found + len(before)
            start, at = _place(whole, at, one["content"], after)
            turns.append(Turn(one["role"], start, at))
        return turns

    def _frames(self, messages: Sequence[Mapping[str, str]]) -> list[str]:
        """What the template itself writes before, between and after the contents.

        The template is filled with markers instead of contents, to see this.
        """
        marks = [f"\u2e28{i}\u2e29" for i in range(len(messages))]
        pairs = list(zip(messages, marks, strict=True))
        frames, rest = [], self.fill([{**one, "content": mark} for one, mark in pairs])
        for one, mark in pairs:
            before, found, rest = rest.partition(mark)
            rest = rest.replace(mark, one["content"])  # a template may write a content twice
            if not found:
                raise TextError(
                    f"the chat template leaves out the message {one['content']!r:.60}; give a string"
                )
            frames.append(before)
        return [*frames, rest]


def _place(whole: str, at: int, content: str, after: str) -> Span:
    """The characters of a content that begins at `at` and stands before `after`.

    A template may strip white space from it. If it adds more to it, the content is sought between the two.
    """
    core = content.strip()
    stripped = rf"\s*{re.escape(core)}\s*" if core else r"\s*"
    for written in (re.escape(content), stripped):
        found = re.compile(f"{written}(?={re.escape(after)})").match(whole, at)
        if found:
            return found.span()
    stop = whole.find(after, at) if after else -1
    start = whole.find(core, at, stop if stop >= 0 else len(whole))
    if start < 0:
        raise TextError(f"the chat template changes the message {core!r:.60}; give the prompt as a string")
    return start, start + len(core)


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
