"""The HTML page around the data of a report. It loads nothing from elsewhere.

The page is a template (templates/viewer.html) with the viewer's style and script (viewer/) inside, and the
data as JSON. Text from a record is safe: it is escaped inside the JSON, and the page inserts it as plain
text. The page's content security policy forbids other scripts and all requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from .fragment import palette, template

SCRIPTS = (
    "base.js",
    "data.js",
    "classes.js",
    "charts.js",
    "folding.js",
    "map.js",
    "text.js",
    "answer.js",
    "compare.js",
    "slices.js",
    "matrix.js",
    "list.js",
    "set.js",
    "main.js",
)
"""the scripts of the viewer, in the order in which they are needed"""
LIVE = ("live.js", "chat.js", "edit.js")
"""further scripts for the page of `masklens serve`"""


def report_html(data: Mapping[str, Any], live: Mapping[str, Any] | None = None) -> str:
    """The HTML page. `live` holds what the page of `masklens serve` needs to know about its server."""
    return template("viewer.html").render(
        title=data["title"],
        policy=content_policy(live is not None),
        script=_script(live is not None),
        style=_style(),
        data=embedded({**data, **({"live": live} if live else {})}),
    )


def content_policy(live: bool) -> str:
    """The content security policy: the page may run its own script, use its own style and, if it is live,
    send requests to its server."""
    rules = [
        "default-src 'none'",
        f"script-src {_hash(_script(live))}",
        f"style-src {_hash(_style())}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: it contains nothing that ends the element or a line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=2)
def _script(live: bool) -> str:
    parts = "\n".join(_read(name) for name in (*SCRIPTS[:-1], *(LIVE if live else ()), SCRIPTS[-1]))
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


@lru_cache(maxsize=1)
def _style() -> str:
    """The style sheet, with the colours of scores as variables for each theme."""
    light, dark = (
        "".join(f"--{name}:{back};--{name}i:{front};" for name, (back, front) in palette(theme).items())
        for theme in ("light", "dark")
    )
    classes = "\n".join(
        f".{name}{{background:var(--{name});color:var(--{name}i)}}" for name in palette("light")
    )
    screen = f"@media screen {{ :root[data-theme=dark] {{{dark}}} }}"
    return f":root {{{light}}}\n{screen}\n{classes}\n{_read('viewer.css')}"


def _read(name: str) -> str:
    """A file of the viewer without its indentation, to keep reports small."""
    text = files("masklens.reports").joinpath("viewer", name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines())
