"""Facts of the texts that the user gives, by which a report can filter (see viewer/slices.js)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TargetError
from .labels import visible


def add_columns(texts: Sequence[dict[str, Any]], columns: Mapping[str, Sequence[Any]]) -> None:
    """Add to each text of the viewer its values of the columns."""
    for name, values in columns.items():
        if len(values) != len(texts):
            raise TargetError(f"{len(values)} values of {name!r} for {len(texts)} texts; give one a text")
        for text, value in zip(texts, values, strict=True):
            known = {} if value is None else {visible(name): visible(str(value))}
            text["columns"] = {**text.get("columns", {}), **known}
