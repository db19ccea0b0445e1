"""The requests of the page of `masklens serve`: short JSON without unknown fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..attribution import Text
from ..methods.ways import Way
from .queue import Queue, Submission

LONGEST_BODY = 256 * 1024
"""the longest body of a request, in bytes"""
LONGEST_TEXT = 20_000
"""the longest text, in characters"""
MOST_METHODS = 12
MOST_NEW_TOKENS = 256
"""the longest answer, in tokens"""
MOST_TURNS = 100
ROLES = ("system", "user", "assistant")


class BadRequest(Exception):
    """Raised for a request that cannot be answered, with the HTTP status of the reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Any) -> Any:
    """The JSON body of a request. A body that is too long or not JSON is refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadRequest(415, "send application/json")
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                raise BadRequest(413, f"the body is longer than {LONGEST_BODY} bytes")
    except ClientDisconnect as error:
        raise BadRequest(400, "the body ended in the middle") from error
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, "the body is not JSON") from error


def read_submission(body: Any, choices: Mapping[str, Way], answers: bool = False) -> Submission:
    """The submission that a request asks for; anything unknown in it is an error.

    `answers` says whether the model can generate answers.
    """
    known = {"text", "methods", "target", "every_site", "like"}
    known |= {"messages", "new_tokens"} if answers else set()
    if not isinstance(body, dict) or not set(body) <= known:
        raise BadRequest(400, f"send an object with {', '.join(sorted(known))}")
    methods, target = body.get("methods"), body.get("target")
    if not isinstance(methods, list) or not 0 < len(methods) <= MOST_METHODS:
        raise BadRequest(400, f"methods is a list of 1 to {MOST_METHODS} names")
    unknown = [name for name in methods if not isinstance(name, str) or name not in choices]
    if unknown:
        raise BadRequest(400, f"no method {unknown[0]!r:.80}; there are {', '.join(choices)}")
    if not (target is None or (isinstance(target, str | int) and len(str(target)) <= LONGEST_TEXT)):
        raise BadRequest(400, "target is a class id, a label name, or null")
    if not isinstance(body.get("every_site", False), bool):
        raise BadRequest(400, "every_site is true or false")
    text, messages, new_tokens = read_prompt(body)
    return Submission(
        text,
        list(dict.fromkeys(methods)),
        target,
        body.get("every_site", False),
        body.get("like"),
        messages=messages,
        new_tokens=new_tokens,
    )


def read_prompt(body: Mapping[str, Any]) -> tuple[Text, list[dict[str, str]] | None, int | None]:
    """The text of a request; for a prompt also its messages, if it is a chat, and the longest answer in
    tokens."""
    new_tokens, messages = body.get("new_tokens"), body.get("messages")
    if new_tokens is None and messages is None:
        return read_text(body.get("text")), None, None
    if new_tokens not in range(1, MOST_NEW_TOKENS + 1) or isinstance(new_tokens, bool | float):
        raise BadRequest(400, f"new_tokens is a whole number from 1 to {MOST_NEW_TOKENS}")
    if body.get("target") is not None:
        raise BadRequest(400, "an answer is explained token by token, without a target")
    if messages is None:
        if not isinstance(body.get("text"), str):
            raise BadRequest(400, "a prompt is one text, or messages")
        return read_text(body["text"]), None, new_tokens
    if "text" in body or not isinstance(messages, list) or not 0 < len(messages) <= MOST_TURNS:
        raise BadRequest(400, f"messages is a list of 1 to {MOST_TURNS}, and comes without a text")
    return read_text(" · ".join(map(_content, messages))), messages, new_tokens


def _content(message: Any) -> str:
    if not isinstance(message, dict) or set(message) != {"role", "content"} or message["role"] not in ROLES:
        raise BadRequest(400, f"a message has a role ({', '.join(ROLES)}) and a content")
    if not isinstance(message["content"], str) or not message["content"].strip():
        raise BadRequest(400, "a message is empty")
    return message["content"]


def completed(body: Any, queue: Queue) -> Any:
    """The body of a request. If it names an earlier submission as `like`, missing fields are taken from
    that."""
    if not isinstance(body, dict) or body.get("like") is None:
        return body
    like = queue.get(body["like"]) if isinstance(body["like"], str) else None
    if like is None:
        raise BadRequest(404, "no such job to change; the history keeps the newest ones only")
    known: dict[str, Any] = {name: getattr(like, name) for name in ("methods", "target", "every_site")}
    if like.new_tokens is not None:
        known["new_tokens"] = like.new_tokens
    if like.messages is not None:
        return {**known, "messages": like.messages, **body}
    return {**known, "text": like.text if isinstance(like.text, str) else list(like.text), **body}


def read_text(text: Any) -> Text:
    """The text or pair of a request. It may not be empty or too long."""
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list) or len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
        raise BadRequest(400, "text is a string or a list of two")
    if not all(part.strip() for part in parts):
        raise BadRequest(400, "the text is empty")
    if sum(map(len, parts)) > LONGEST_TEXT:
        raise BadRequest(413, f"the text is longer than {LONGEST_TEXT} characters")
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])
