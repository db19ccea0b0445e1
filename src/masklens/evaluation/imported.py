"""Attributions that another tool made: tokens and scores from a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..attribution import Attribution, load
from ..encoding import align
from ..errors import FileError


def read_attributions(path: str | os.PathLike[str]) -> list[Attribution]:
    """What `masklens.save` wrote, or .json and .jsonl files of {"text": ..., "tokens": [], "scores": []}.

    Scores are one a token, or a list of such lists, one a site. Tokens may be any pieces of the text in
    order, such as words or another tokenizer's; they are found in the text by their characters. "prediction"
    and "target" may be given.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return load(path)
    rows = _rows(path)
    if rows and all("offsets" in row for row in rows):
        return load(path)
    return [_attribution(row, f"row {i} of {path}") for i, row in enumerate(rows, start=1)]


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix not in (".json", ".jsonl"):
        raise FileError(f"cannot read attributions from {path}; use .parquet, .json or .jsonl")
    try:
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
        )
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError(f"{path} must hold objects such as {{'text': ..., 'tokens': [...], 'scores': [...]}}")
    return rows


def _attribution(row: Mapping[str, Any], where: str) -> Attribution:
    missing = [name for name in ("text", "tokens", "scores") if name not in row]
    if missing:
        raise FileError(f"{where} has no {missing[0]!r}; it needs text, tokens and scores")
    tokens, scores = (
        [str(t) for t in row["tokens"]],
        np.atleast_2d(np.asarray(row["scores"], dtype=np.float32)),
    )
    if not isinstance(row["text"], str) or scores.shape[-1] != len(tokens):
        raise FileError(
            f"{where} must hold one string and one score a token; {len(tokens)} tokens, {scores.shape}"
        )
    spans = align(row["text"], tokens)
    prediction = str(row.get("prediction", ""))
    return Attribution(
        text=row["text"],
        tokens=tuple(tokens),
        offsets=tuple(spans),
        special=tuple(start == end for start, end in spans),
        segments=(0,) * len(tokens),
        sites=tuple(range(len(scores))),
        scores=scores,
        prediction=prediction,
        target=str(row.get("target", prediction)),
        method=str(row.get("method", "imported")),
    )
