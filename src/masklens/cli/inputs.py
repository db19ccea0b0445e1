"""Turn options into what the library takes: texts, the model, lenses, methods and targets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import masklens

from ..errors import MethodError, TextError
from ..progress import stage, told
from .console import tell

if TYPE_CHECKING:
    from ..attribution import Explanations, Text
    from ..diffmask.lens import DiffMask
    from ..methods.ways import Way
    from ..model.subject import Subject


def gather(
    texts: Sequence[str] | None,
    pattern: str | None,
    columns: Sequence[str] | None,
    limit: int | None,
    pair: bool = False,
) -> list[Text]:
    """The texts given as arguments, two by two for pairs, and those in files, at most `limit` of them."""
    from ..files.formats import STANDARD_INPUT
    from ..files.reading import read_texts

    given = list(texts or [])
    if given == [STANDARD_INPUT] and pattern is None:
        given, pattern = [], STANDARD_INPUT
    if STANDARD_INPUT in given:
        raise TextError("- is standard input, and stands alone: leave the other texts and files out")
    if pair and (len(given) % 2 or not given):
        raise TextError(f"--pair takes two texts for each pair; {len(given)} texts were given")
    for number, text in enumerate(given, start=1):
        if not text.strip():
            raise TextError(f"text {number} of the command line is empty; leave it out")
    found: list[Text] = list(zip(given[::2], given[1::2], strict=True)) if pair else list(given)
    if pattern is not None:
        found += read_texts(pattern, columns or ["text"], limit)
    if not found:
        raise TextError("no text was given; give one or more as arguments, or a file with --input")
    return found[:limit]


def load_subject(
    model: str | None,
    device: str | None,
    truncate: bool = False,
    max_length: int | None = None,
    trust_remote_code: bool = False,
) -> Subject:
    """The model that was named, or the packaged one."""
    how: dict[str, Any] = {"truncate": truncate, "max_length": max_length}
    what = f"loading the model {model}" if model else "loading the packaged model"
    with stage(what), told(what):
        if model is not None:
            how["trust_remote_code"] = trust_remote_code
            return masklens.Subject.from_pretrained(model, device=device, **how)
        subject = masklens.Subject.default(device)
        return masklens.Subject(subject.module, subject.tokenizer, **how) if any(how.values()) else subject


def load_lenses(
    model: str | None,
    subject: Subject,
    given: Sequence[Path] | None,
    methods: Sequence[str] | None = None,
    packaged: Sequence[str] = ("inputs",),
) -> list[DiffMask]:
    """The lenses that were named. The packaged model comes with its own, unless methods were named."""
    if given or model is not None:
        return [masklens.DiffMask.from_pretrained(one, subject) for one in given or []]
    wanted = packaged if not methods or "diffmask" in methods else ()
    return [masklens.DiffMask.default(subject, over) for over in wanted]


def packaged_head(model: str | None, given: str | None) -> str | None:
    """The LM head that was named, or that of the packaged model if no model was named."""
    if given is not None or model is not None:
        return given
    from ..model.default import HOME

    return str(HOME)


def choose_ways(
    subject: Subject,
    methods: Sequence[str] | None,
    lenses: Sequence[DiffMask],
    lm_head: str | None,
    options: Sequence[str] | None,
) -> dict[str, Way]:
    """The methods and lenses to explain with, by name."""
    from ..methods.usual import usual_method
    from ..methods.ways import find_ways

    return find_ways(methods or [], usual_method(subject), lenses, lm_head, read_options(options))


def explain_all(
    subject: Subject,
    texts: Sequence[Text],
    ways: Mapping[str, Way],
    target: str | None,
    seed: int,
    windows: int | None,
    sites: Sequence[int] | None = None,
) -> dict[str, Explanations]:
    """The attributions of each way (a method or a lens), by its name."""
    from ..methods.ways import explain_ways

    if len(texts) > 1:
        tell(f"explaining {len(texts):,} texts with {', '.join(ways)}")
    common: dict[str, Any] = {"target": read_target(target), "seed": seed, "windows": windows, "sites": sites}
    return explain_ways(subject, texts, ways, **common)


def read_target(target: Any) -> Any:
    """A class id if the target is a whole number, else the target as it was given, such as a label name."""
    return int(target) if isinstance(target, str) and target.isdecimal() else target


def read_options(given: Sequence[str] | None, flag: str = "--option") -> dict[str, Any]:
    """Options of methods, each given as NAME=VALUE; a value is JSON (a number, true, null) or a string."""
    found = {}
    for one in given or []:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise MethodError(f"{flag} {one} is not understood; write {flag} NAME=VALUE")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_methods(names: Sequence[str] | None) -> None:
    """Raise for a method that does not exist, before the model is loaded."""
    from ..methods.registry import find

    for name in names or []:
        find(name)


def check_unused(given: Mapping[str, Any], needs: str = "texts, not attributions") -> None:
    """Raise for an option that would have no effect together with the other options."""
    for name, value in given.items():
        if value is not None and value is not False and value not in ([], (), ""):  # 0 is given, too
            raise MethodError(f"{name} needs {needs}, or leave it out")
