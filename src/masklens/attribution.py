"""The record that every method returns: tokens, sites and scores of one text. It does not need torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from .errors import FileError
from .files import FileModel, PlainText, check_writable, encodable, validate, whole
from .files.formats import Columns, records
from .files.parquet import to_parquet
from .records.layers import row_of, site_name
from .records.verification import Verification, from_record, verification_record, verification_schema
from .words import word_groups, word_span

Text = str | tuple[str, str]

MOST_TOKENS = 10**6
LARGEST_SCORE = float(np.finfo(np.float32).max)
MOST_CELLS = 2 * 10**7
"""what one file may take of memory, in scores: about 300 MB"""
CELLS_OF_A_TOKEN, CELLS_OF_A_TEXT = 10, 50
"""what else is kept of a token and of a text, in scores"""
SHOWN = 5
"""texts of a list that a notebook or a prompt shows"""


@dataclass(frozen=True, eq=False, repr=False)
class Attribution:
    """Scores of one text's tokens at one or more sites.

    Offsets are character positions in the text that the token comes from. For a pair, `segments` says which
    text that is. A token that stands for no characters, such as [CLS], has an empty span.
    """

    text: Text
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]
    """0 or 1: the text of the pair that a token comes from; special tokens go with the text before them"""
    sites: tuple[int, ...]
    scores: np.ndarray
    """(sites, tokens) float32"""
    prediction: str
    target: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    merge: str = "sum"
    """how the scores of sub-words become the score of a word: "sum" for shares, "max" for probabilities"""
    parts: tuple[str, ...] = ()
    """what the two texts of a pair are called, such as question and passage; empty for a single text"""
    verification: Verification | None = None
    """what `verify` found, where it is to be kept with the record"""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """of every class, where the model has classes"""
    answer: tuple[int, int] | None = None
    """the characters of the second text that the predicted answer to a question spans"""
    expected: tuple[float, ...] = ()
    """for additive methods what the scores of each site should add up to: the target's score for the text
    minus that for the baseline"""

    def __post_init__(self) -> None:
        scores, count = np.asarray(self.scores, dtype=np.float32), len(self.tokens)
        object.__setattr__(self, "scores", scores)
        if scores.shape != (len(self.sites), count):
            raise ValueError(
                f"scores have shape {scores.shape}; {(len(self.sites), count)} (sites, tokens) is needed"
            )
        for name in ("offsets", "special", "segments"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{len(getattr(self, name))} {name} for {count} tokens")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attribution):
            return NotImplemented
        return _row(self) == _row(other)

    @property
    def sources(self) -> tuple[str, ...]:
        """The text, or the two of a pair."""
        return (self.text,) if isinstance(self.text, str) else self.text

    def at(self, site: int | str) -> np.ndarray:
        """The scores at one site, given by its number or by the name of its layer, (tokens,)."""
        return self.scores[row_of(site, self.sites)]

    def words(self, merge: str | None = None) -> Attribution:
        """The same record with words in place of tokens: the scores of a word's tokens are merged.

        `merge` is "sum", "max" or "mean". The default is the one that suits the method's scores.
        """
        groups = word_groups(self.sources, self.tokens, self.offsets, self.segments, self.special)
        spans = [word_span(_source(self, g[0]), [self.offsets[i] for i in g]) for g in groups]
        reduce: Any = {"sum": np.sum, "max": np.max, "mean": np.mean}[merge or self.merge]
        columns = [reduce(self.scores[:, group], axis=1) for group in groups]
        firsts = [group[0] for group in groups]
        return replace(
            self,
            tokens=tuple(_word(self, group, span) for group, span in zip(groups, spans, strict=True)),
            offsets=tuple(spans),
            special=tuple(self.special[i] for i in firsts),
            segments=tuple(self.segments[i] for i in firsts),
            scores=np.stack(columns, axis=1) if columns else self.scores,
        )

    def plot(self, ax: Any = None, words: bool = False, per_site: bool | None = None) -> Any:
        """Draw the heat map and return its axes: coloured tokens for one site, sites x tokens for several.

        Colours show shares of each site's largest score, or keep probabilities as they are. `per_site=False`
        puts all sites on one scale, `per_site=True` also divides keep probabilities.
        """
        from .reports.heatmap import plot

        return plot(self.words() if words else self, ax=ax, per_site=per_site)

    def __repr__(self) -> str:
        shape = f"{_counted(len(self.tokens), 'token')}, {_counted(len(self.sites), 'layer')}"
        short = shorten(" | ".join(self.sources), 60, placeholder=" ...")
        return f"Attribution({short!r}: {self.target!r}, {self.method}, {shape})"

    def _repr_html_(self) -> str:
        from .reports.fragment import fragment

        return fragment(self)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Explanations(list[Attribution]):
    """Attributions in the order of their texts, and the seconds it took to make them all, where known."""

    def __init__(self, attributions: Iterable[Attribution] = (), seconds: float | None = None) -> None:
        super().__init__(attributions)
        self.seconds = seconds

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each text, layer and token."""
        import pandas

        frames = [_frame(i, a) for i, a in enumerate(self)]
        return pandas.concat(frames or [pandas.DataFrame()], ignore_index=True)

    def __repr__(self) -> str:
        lines = [repr(a) for a in self[:SHOWN]]
        lines += [f"... {len(self) - SHOWN:,} more"] if self[SHOWN:] else []
        return "\n".join([_counted(len(self), "attribution"), *lines])

    def _repr_html_(self) -> str:
        from .reports.fragment import LETTERS

        more = f"<div {LETTERS}>{len(self) - SHOWN:,} more</div>" if self[SHOWN:] else ""
        return "".join(a._repr_html_() for a in self[:SHOWN]) + more


def _frame(number: int, a: Attribution) -> Any:
    """The rows of one text: all tokens of the first layer, then all of the second, ..."""
    import pandas

    sites, tokens = a.scores.shape
    starts, ends = np.array(a.offsets, dtype=int).reshape(-1, 2).T
    each = {"token": a.tokens, "start": starts, "end": ends, "special": a.special, "segment": a.segments}
    return pandas.DataFrame(
        {
            "text": number,
            "site": np.repeat(a.sites, tokens),
            "layer": np.repeat([site_name(site) for site in a.sites], tokens),
            **{name: np.tile(np.array(values), sites) for name, values in each.items()},
            "score": a.scores.ravel(),
            **{name: getattr(a, name) for name in ("prediction", "target", "method")},
        }
    )


def _source(attribution: Attribution, i: int) -> str:
    return attribution.sources[attribution.segments[i]]


def _word(attribution: Attribution, group: Sequence[int], span: tuple[int, int]) -> str:
    return _source(attribution, group[0])[slice(*span)].strip() or attribution.tokens[group[0]]


def record(attribution: Attribution) -> dict[str, Any]:
    """The attribution as lists, strings and numbers, for JSON. Scores that are not finite become None."""
    scores = attribution.scores.astype(object)
    scores[~np.isfinite(attribution.scores)] = None
    proof = attribution.verification
    return {
        **asdict(attribution),
        "scores": scores.tolist(),
        "settings": dict(attribution.settings),
        "probabilities": dict(attribution.probabilities),
        "verification": None if proof is None else verification_record(proof),
    }


def _row(attribution: Attribution) -> dict[str, Any]:
    """The attribution for columns of one type each."""
    row = record(attribution)
    row["text"] = list(attribution.sources)
    row["settings"] = json.dumps(attribution.settings, sort_keys=True, default=str)
    row["probabilities"] = probability_rows(attribution.probabilities)
    return row


def probability_rows(probabilities: Mapping[str, float]) -> list[dict[str, Any]]:
    """Classes and their probabilities for a column of a table."""
    return [{"label": label, "probability": value} for label, value in probabilities.items()]


Word = Annotated[PlainText, Field(max_length=10**6)]
Site = Annotated[int, Field(ge=0, le=10**5)]
SavedSettings = Annotated[
    dict[str, Any], BeforeValidator(lambda value: json.loads(value) if isinstance(value, str) else value)
]
"""as they are, or written as JSON"""
SavedSpan = Annotated[list[int], Field(min_length=2, max_length=2)]


class Saved(FileModel):
    """An attribution as a file holds it: a `record` or a `_row`."""

    model_config = ConfigDict(extra="ignore")  # a corpus run has columns of its own
    text: (
        Annotated[PlainText, Field(max_length=10**8)]
        | Annotated[list[PlainText], Field(min_length=1, max_length=2)]
    )
    tokens: Annotated[list[Word], Field(max_length=MOST_TOKENS)]
    offsets: list[SavedSpan]
    special: list[bool]
    segments: list[Annotated[int, Field(ge=0, le=1)]]
    sites: Annotated[list[Site], Field(min_length=1)]
    scores: list[list[Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)] | None]]
    prediction: Word
    target: Word
    method: Word
    settings: SavedSettings
    merge: Literal["sum", "max", "mean"]
    parts: Annotated[list[Word], Field(max_length=2)] | None = None
    verification: Verification | None = None
    probabilities: dict[Word, Annotated[float, Field(ge=0, le=1)]] = {}
    answer: SavedSpan | None = None
    expected: list[Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]] = []

    @field_validator("probabilities", mode="before")
    @classmethod
    def _probabilities(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value or {}
        return {row.get("label"): row.get("probability") for row in value if isinstance(row, dict)}

    @field_validator("expected", mode="before")
    @classmethod
    def _expected(cls, value: Any) -> Any:
        return value or []

    @field_validator("verification", mode="before")
    @classmethod
    def _verification(cls, value: Any) -> Any:
        return value if isinstance(value, Verification) else from_record(value)

    @model_validator(mode="after")
    def _fits_together(self) -> Saved:
        texts, count = self.texts, len(self.tokens)
        encodable(json.dumps(self.settings, ensure_ascii=False, default=str))
        others: list[list[Any]] = [self.offsets, self.special, self.segments, *self.scores]
        if any(len(one) != count for one in others):
            raise ValueError(f"offsets, special, segments and scores need {count} entries: one per token")
        if len(self.scores) != len(self.sites) or len(set(self.sites)) < len(self.sites):
            raise ValueError(
                f"{len(self.scores)} lists of scores for the sites {self.sites}; one each is needed"
            )
        if max(self.segments, default=0) >= len(texts):
            raise ValueError("a token comes from the second text, but there is one text")
        for (start, end), segment in zip(self.offsets, self.segments, strict=True):
            if not 0 <= start <= end <= len(texts[segment]):
                raise ValueError(f"the offsets {start} to {end} are not in the text")
        if self.answer and not 0 <= self.answer[0] <= self.answer[1] <= len(texts[-1]):
            raise ValueError(f"the answer at {self.answer} is not in the text")
        if len(self.expected) not in (0, len(self.sites)):
            raise ValueError(f"{len(self.expected)} expected sums for {len(self.sites)} sites; give one each")
        return self

    @property
    def texts(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else self.text

    def attribution(self) -> Attribution:
        first, *second = self.texts
        return Attribution(
            text=(first, second[0]) if second else first,
            tokens=tuple(self.tokens),
            offsets=tuple((start, end) for start, end in self.offsets),
            special=tuple(self.special),
            segments=tuple(self.segments),
            sites=tuple(self.sites),
            scores=np.array(self.scores, dtype=np.float32).reshape(len(self.sites), len(self.tokens)),
            prediction=self.prediction,
            target=self.target,
            method=self.method,
            settings=self.settings,
            merge=self.merge,
            parts=tuple(self.parts or ()),
            verification=self.verification,
            probabilities=self.probabilities,
            answer=(self.answer[0], self.answer[1]) if self.answer else None,
            expected=tuple(self.expected),
        )


def from_row(row: Any, where: str) -> Attribution:
    """The attribution of a `record` or of a `_row`; `where` names the row in an error."""
    return validate(Saved, row, where).attribution()


def save(attributions: Sequence[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write attributions to a .parquet or .json file; the file appears whole or not at all.

    Scores that are not finite are written as null, and are read back as nan.
    """
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise FileError(f"cannot save attributions as {path.suffix or path.name!r}; use .parquet or .json")
    check_writable(path)
    with whole(path) as part:
        _WRITERS[path.suffix](attributions, part)
    return path


def _write_parquet(attributions: Sequence[Attribution], path: Path) -> None:
    import pyarrow as pa

    path.write_bytes(to_parquet(pa.Table.from_pylist([_row(a) for a in attributions], schema=schema(pa))))


def _write_json(attributions: Sequence[Attribution], path: Path) -> None:
    rows = [record(a) for a in attributions]
    path.write_text(json.dumps(rows, ensure_ascii=False, allow_nan=False, default=str), encoding="utf-8")


_WRITERS = {".parquet": _write_parquet, ".json": _write_json}


def load(path: str | os.PathLike[str]) -> Explanations:
    """Read what `save` wrote."""
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise FileError(f"cannot load attributions from {path.suffix or path.name!r}; use .parquet or .json")
    return Explanations(within_memory((from_row(row, where) for where, row in saved_rows(path)), path))


def within_memory(attributions: Iterable[Attribution], path: Path) -> list[Attribution]:
    """All of them, unless there are so many that memory could run out: a small file can hold a lot."""
    found, cells = [], 0
    for one in attributions:
        found.append(one)
        cells += len(one.tokens) * (len(one.sites) + CELLS_OF_A_TOKEN) + CELLS_OF_A_TEXT
        if cells > MOST_CELLS:
            raise FileError(
                f"{path} holds more than can be taken into memory at once: it was read up to its "
                f"{len(found):,}th attribution. Save fewer texts to a file, or evaluate a corpus run"
            )
    return found


def saved_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file of attributions, some in memory at a time, and what each is called."""
    for number, row in records(str(path), Columns(tuple(Saved.model_fields))):
        if isinstance(row, str):
            raise FileError(f"row {number} of {path} cannot be used: {row}")
        yield f"row {number} of {path}", row


def schema(pa: Any) -> Any:
    """The columns of a Parquet file of attributions."""
    strings, ints = pa.list_(pa.string()), pa.list_(pa.int32())
    return pa.schema(
        {
            "text": strings,
            "tokens": strings,
            "offsets": pa.list_(ints),
            "special": pa.list_(pa.bool_()),
            "segments": ints,
            "sites": ints,
            "scores": pa.list_(pa.list_(pa.float32())),
            "prediction": pa.string(),
            "target": pa.string(),
            "method": pa.string(),
            "settings": pa.string(),
            "merge": pa.string(),
            "parts": strings,
            "verification": verification_schema(pa),
            "probabilities": pa.list_(pa.struct({"label": pa.string(), "probability": pa.float64()})),
            "answer": ints,
            "expected": pa.list_(pa.float64()),
        }
    )
