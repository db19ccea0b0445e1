"""Read attributions from a file: those of another tool, or those that `masklens.save` wrote."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, field_validator, model_validator

from ..attribution import (
    LARGEST_SCORE,
    MOST_TOKENS,
    Attribution,
    Site,
    Word,
    from_row,
    saved_rows,
    within_memory,
)
from ..errors import FileError
from ..files import FileModel, PlainText, validate
from ..model.alignment import find_pieces
from ..records.generation import holds_generations

ENDINGS = (".parquet", ".json", ".jsonl")
MARK = re.compile(r"[\[<].*[\]>]|[\W_]*", re.DOTALL)
"""tokens that need not be in the text: [CLS], <s>, and the marks of sub-words alone"""

Score = Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]


class Imported(FileModel):
    """An attribution made by another tool."""

    model_config = ConfigDict(extra="ignore")
    text: Annotated[PlainText, Field(max_length=10**8)]
    tokens: Annotated[list[Word], Field(min_length=1, max_length=MOST_TOKENS)]
    scores: Annotated[list[list[Score]], Field(min_length=1)]
    """one score per token, for each site; a single list stands for a single site"""
    sites: list[Site] | None = None
    prediction: Word | int | None = None
    target: Word | int | None = None
    method: Word = "imported"

    @field_validator("scores", mode="before")
    @classmethod
    def _by_site(cls, value: Any) -> Any:
        flat = isinstance(value, list) and not any(isinstance(one, list) for one in value)
        return [value] if flat else value

    @model_validator(mode="after")
    def _fits_together(self) -> Imported:
        wrong = [len(row) for row in self.scores if len(row) != len(self.tokens)]
        if wrong:
            raise ValueError(f"{len(self.tokens)} tokens and {wrong[0]} scores; give one score per token")
        sites = self.sites or range(len(self.scores))
        if len(sites) != len(self.scores) or len(set(sites)) < len(sites):
            raise ValueError(f"{len(self.scores)} lists of scores for the sites {sites}; one each is needed")
        return self

    def attribution(self, where: str) -> Attribution:
        spans = self._spans(where)
        prediction = _name(self.prediction)
        return Attribution(
            text=self.text,
            tokens=tuple(self.tokens),
            offsets=tuple(spans),
            special=tuple(start == end for start, end in spans),
            segments=(0,) * len(self.tokens),
            sites=tuple(self.sites or range(len(self.scores))),
            scores=np.array(self.scores, dtype=np.float32),
            prediction=prediction,
            target=_name(self.target) or prediction,
            method=self.method,
        )

    def _spans(self, where: str) -> list[tuple[int, int]]:
        """The characters of each token. Tokens that are not in the text in this order are an error."""
        spans = find_pieces(self.text, self.tokens)
        for i, (token, span) in enumerate(zip(self.tokens, spans, strict=True), start=1):
            if span is None and not MARK.fullmatch(token):
                raise FileError(
                    f"{where} has the token {token!r} (number {i}), which is not in its text after the ones "
                    f"before it; tokens are pieces of the text in their order"
                )
        return [span or self._gap(spans, i) for i, span in enumerate(spans)]

    def _gap(self, spans: list[tuple[int, int] | None], i: int) -> tuple[int, int]:
        """The characters of a token that is not in the text. [UNK] stands for what its neighbours enclose."""
        start = next((span[1] for span in reversed(spans[:i]) if span), 0)
        end = next((span[0] for span in spans[i + 1 :] if span), len(self.text))
        between = self.text[start:end]
        if "unk" not in self.tokens[i].casefold() or not between.strip():
            return 0, 0
        return start + len(between) - len(between.lstrip()), start + len(between.rstrip())


def _name(label: str | int | None) -> str:
    return "" if label is None else str(label)


def read_attributions(path: str | os.PathLike[str]) -> list[Attribution]:
    """Read a file that `masklens.save` wrote, or rows of {"text": ..., "tokens": [], "scores": []}.

    "scores" has one score per token, or one such list per site. Tokens may be any pieces of the text in
    order, such as words or the tokens of another tokenizer; they are found in the text by their characters.
    "prediction" and "target" are optional. Every score must be a finite number.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise FileError(f"cannot read attributions from {path}; use {', '.join(ENDINGS)}")
    if holds_generations(path):
        raise FileError(
            f"{path} holds explained answers, not explained texts; `masklens explain --generate` verifies "
            f"answers and writes their report, as masklens.verify_generation and masklens.report do"
        )
    found = within_memory((_attribution(row, where) for where, row in saved_rows(path)), path)
    if not found:
        raise FileError(f"{path} holds no attributions; give a file with at least one")
    return found


def _attribution(row: Any, where: str) -> Attribution:
    if not isinstance(row, dict) or "offsets" not in row:
        return validate(Imported, row, where).attribution(where)
    found = from_row(row, where)
    if not np.isfinite(found.scores).all():
        raise FileError(f"{where} has scores that are not finite; its tokens cannot be ranked")
    return found


def holds_attributions(path: str) -> bool:
    """Whether a file holds attributions and not plain texts: its first row has tokens or scores."""
    file = Path(path)
    if file.suffix not in ENDINGS or not file.is_file():
        return False
    _, first = next(saved_rows(file), ("", None))
    return isinstance(first, dict) and bool({"tokens", "scores"} & set(first))
