"""The record that every method returns: tokens, sites and scores of one text. Knows nothing about torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .errors import FileError
from .files import whole
from .words import word_groups, word_span

Text = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Attribution:
    """Scores of one text's tokens at one or more sites.

    Offsets are character positions in the text the token comes from (`segments` says which of a pair); a
    token that stands for no characters, such as [CLS], has an empty span.
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
    """how sub-word scores become a word's: "sum" for shares of the output, "max" for probabilities"""
    parts: tuple[str, ...] = ()
    """what the two texts of a pair are called, such as question and passage; empty for a single text"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", np.asarray(self.scores, dtype=np.float32))
        shape = (len(self.sites), len(self.tokens))
        if self.scores.shape != shape:
            raise ValueError(f"scores have shape {self.scores.shape}; {shape} (sites, tokens) is needed")
        for name in ("offsets", "special", "segments"):
            if len(getattr(self, name)) != len(self.tokens):
                raise ValueError(f"{len(getattr(self, name))} {name} for {len(self.tokens)} tokens")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attribution):
            return NotImplemented
        return _row(self) == _row(other)

    def at(self, site: int) -> np.ndarray:
        """The scores at one site, (tokens,)."""
        if site not in self.sites:
            raise ValueError(f"no scores at site {site}; this record has sites {self.sites}")
        return self.scores[self.sites.index(site)]

    def words(self, merge: str | None = None) -> Attribution:
        """The same record over words: the tokens of one word of the text are merged (see `words`).

        `merge` is "sum", "max" or "mean"; by default what the method says is right for its scores.
        """
        sources = (self.text,) if isinstance(self.text, str) else self.text
        groups = word_groups(sources, self.tokens, self.offsets, self.segments, self.special)
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

    def plot(self, ax: Any = None, words: bool = False, per_site: bool = False) -> Any:
        """Draw the heat map (one site: coloured tokens; several: sites x tokens); returns the axes.

        `per_site` divides each site's scores by the site's largest.
        """
        from .viz.heatmap import plot

        return plot(self.words() if words else self, ax=ax, per_site=per_site)

    def _repr_html_(self) -> str:
        from .viz.fragment import fragment

        return fragment(self)


def _source(attribution: Attribution, i: int) -> str:
    text = attribution.text
    return text if isinstance(text, str) else text[attribution.segments[i]]


def _word(attribution: Attribution, group: Sequence[int], span: tuple[int, int]) -> str:
    return _source(attribution, group[0])[slice(*span)].strip() or attribution.tokens[group[0]]


def record(attribution: Attribution) -> dict[str, Any]:
    """The attribution for JSON: lists, strings and numbers; scores that are not finite become None."""
    scores = attribution.scores.astype(object)
    scores[~np.isfinite(attribution.scores)] = None
    return {**asdict(attribution), "scores": scores.tolist(), "settings": dict(attribution.settings)}


def _row(attribution: Attribution) -> dict[str, Any]:
    """The attribution for columns of one type each."""
    row = {**asdict(attribution), "scores": attribution.scores.tolist()}
    row["text"] = [attribution.text] if isinstance(attribution.text, str) else list(attribution.text)
    row["settings"] = json.dumps(attribution.settings, sort_keys=True, default=str)
    return row


def from_row(row: Mapping[str, Any]) -> Attribution:
    """The attribution of a `record` or of a `_row`."""
    text, settings = row["text"], row["settings"]
    texts = [text] if isinstance(text, str) else text
    return Attribution(
        text=texts[0] if len(texts) == 1 else (texts[0], texts[1]),
        tokens=tuple(row["tokens"]),
        offsets=tuple((int(s), int(e)) for s, e in row["offsets"]),
        special=tuple(bool(s) for s in row["special"]),
        segments=tuple(int(s) for s in row["segments"]),
        sites=tuple(int(s) for s in row["sites"]),
        scores=np.asarray(row["scores"], dtype=np.float32).reshape(len(row["sites"]), len(row["tokens"])),
        prediction=row["prediction"],
        target=row["target"],
        method=row["method"],
        settings=json.loads(settings) if isinstance(settings, str) else settings,
        merge=row["merge"],
        parts=tuple(row.get("parts") or ()),
    )


def save(attributions: Sequence[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write attributions to a .parquet or .json file; the file appears whole or not at all."""
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise FileError(f"cannot save attributions as {path.suffix or path.name!r}; use .parquet or .json")
    with whole(path) as part:
        _WRITERS[path.suffix](attributions, part)
    return path


def _write_parquet(attributions: Sequence[Attribution], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([_row(a) for a in attributions], schema=schema(pa)), path)


def _write_json(attributions: Sequence[Attribution], path: Path) -> None:
    rows = [record(a) for a in attributions]
    path.write_text(json.dumps(rows, ensure_ascii=False, allow_nan=False, default=str), encoding="utf-8")


_WRITERS = {".parquet": _write_parquet, ".json": _write_json}


def load(path: str | os.PathLike[str]) -> list[Attribution]:
    """Read what `save` wrote."""
    path = Path(path)
    if not path.exists():
        raise FileError(f"no file {path}")
    if path.suffix not in _READERS:
        raise FileError(f"cannot load attributions from {path.suffix or path.name!r}; use .parquet or .json")
    try:
        return [from_row(row) for row in _READERS[path.suffix](path)]
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise FileError(f"{path} does not hold attributions as masklens saves them ({error!r})") from error


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def _read_json(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise ValueError(f"a list is needed, not {type(rows).__name__}")
    return rows


_READERS = {".parquet": _read_parquet, ".json": _read_json}


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
        }
    )
