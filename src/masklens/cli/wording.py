"""Messages of the library in the words of the command line: options instead of Python arguments, and the
names of layers instead of the numbers of sites."""

from __future__ import annotations

import re
import sys

from ..records.layers import in_layers

PHRASES = {
    "give Subject truncate=True": "give --truncate",
    "truncate=True": "--truncate",
    "trust_remote_code=True": "--trust-remote-code",
    "Leave windows out": "Leave --windows out",
    "windows=128": "--windows 128",
    "give explain another layer (sites=)": "give explain another --layer",
    "explain_generation is for": "--generate and --chat are for",
    ", or a list of spans of the prompt: strings, or (start, end) characters": ", or a json file of spans",
    "; give it as (start, end) instead": "; give it as [start, end] instead",
    "leave it out of template_options": "leave out this --template-option",
    "; give the messages, a list of {'role': ..., 'content': ...}": "; they are for --chat",
    ", or a slice of the answer's tokens": "",
    "; use masklens.explain": "; leave out --generate or --chat",
    "or pass task= to Subject": "or use masklens from Python, where Subject takes a task",
    "; or give a pipeline of your own as nlp=": "",
    "give rationales=, spans for each text": "use masklens.evaluate from Python, with rationales",
    "give {name: attributions} with at least one attribution each": "give texts, --input or --attributions",
    "give {name: folder of a corpus run}": "give folders of corpus runs with --attributions",
    "Give a vector that stands for a removed token (replace=tensor)": (
        "Use masklens from Python, where a vector can stand for a removed token"
    ),
    "give a baseline vector that stands for a removed token (replace=tensor)": (
        "use masklens from Python, where a vector can stand for a removed token"
    ),
}
"""phrases of messages, and what they become on the command line"""

OPTIONS = (
    "continuation",
    "guard",
    "lens",
    "lm_head",
    "margin",
    "max_length",
    "over",
    "seed",
    "steps",
    "target",
)
"""Python arguments that have an option of the same name"""


def in_options(message: str) -> str:
    """A message with the names of options and layers instead of Python arguments and sites."""
    for argument, option in PHRASES.items():
        message = message.replace(argument, option)
    message = re.sub(rf"\b({'|'.join(OPTIONS)})=('[^']*'|[\w.]*)", _option, message)
    message = re.sub(rf"(?<!-)\b({'|'.join(_method_options())})=", r"--option \1=", message)
    return in_layers(message)


def _option(found: re.Match[str]) -> str:
    return f"--{found[1].replace('_', '-')} {found[2]}".strip()


def _method_options() -> set[str]:
    """The options of all methods, if these are loaded; before that no message can name their options."""
    registry = sys.modules.get("masklens.methods.registry")
    known = {name for method in registry.METHODS.values() for name in method.options} if registry else set()
    return (known | {"baselines"}) - set(OPTIONS)
