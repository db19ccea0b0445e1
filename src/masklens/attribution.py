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
        """The same record over words: sub-words that touch in the text and have no space between them.

        `merge` is "sum", "max" or "mean"; by default what the method says is right for its scores.
        """
        groups = _word_groups(self)
        reduce = {"sum": np.sum, "max": np.max, "mean": np.mean}[merge or self.merge]
        columns = [reduce(self.scores[:, group], axis=1) for group in groups]
        firsts = [group[0] for group in groups]
        return replace(
            self,
            tokens=tuple(_word(self, group) for group in groups),
            offsets=tuple((self.offsets[g[0]][0], self.offsets[g[-1]][1]) for g in groups),
            special=tuple(self.special[i] for i in firsts),
            segments=tuple(self.segments[i] for i in firsts),
            scores=np.stack(columns, axis=1) if columns else self.scores,
        )

    def plot(self, ax: Any = None, words: bool = False) -> Any:
        """Draw the heat map (one site: coloured tokens; several: sites x tokens); returns the axes."""
        from .viz.heatmap import plot

        return plot(self.words() if words else self, ax=ax)

    def _repr_html_(self) -> str:
        from .viz.page import fragment

        return fragment(self)


def _source(attribution: Attribution, i: int) -> str:
    text = attribution.text
    return text if isinstance(text, str) else text[attribution.segments[i]]


def _word_groups(attribution: Attribution) -> list[list[int]]:
    """Token indices of each word. A token joins the one before it if nothing separates the two and both
    are made of letters, digits or marks, or share characters (byte-level pieces of one character)."""
    groups: list[list[int]] = []
    for i, (start, end) in enumerate(attribution.offsets):
        if groups and _continues(attribution, groups[-1][-1], i, start, end):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _continues(attribution: Attribution, before: int, i: int, start: int, end: int) -> bool:
    if attribution.special[i] or attribution.special[before]:
        return False
    if attribution.segments[i] != attribution.segments[before] or start == end:
        return False
    source, (b_start, b_end) = _source(attribution, i), attribution.offsets[before]
    if start < b_end:
        return True
    left, right = source[b_start:b_end], source[start:end]
    if start > b_end or not left or right[:1].isspace() or left[-1:].isspace():
        return False
    return _wordlike(left[-1]) and _wordlike(right[0])


def _wordlike(character: str) -> bool:
    """Letters, digits and combining marks; ideographs stand for words of their own."""
    import unicodedata

    kind = unicodedata.category(character)
    ideograph = kind == "Lo" and unicodedata.east_asian_width(character) in "WF"
    return kind[0] in "LNM" and not ideograph


def _word(attribution: Attribution, group: Sequence[int]) -> str:
    if len(group) == 1 and attribution.special[group[0]]:
        return attribution.tokens[group[0]]
    start, end = attribution.offsets[group[0]][0], attribution.offsets[group[-1]][1]
    return _source(attribution, group[0])[start:end].strip() or attribution.tokens[group[0]]


def _row(attribution: Attribution) -> dict[str, Any]:
    row = {**asdict(attribution), "scores": attribution.scores.tolist()}
    row["text"] = [attribution.text] if isinstance(attribution.text, str) else list(attribution.text)
    row["settings"] = json.dumps(attribution.settings, sort_keys=True, default=str)
    return row


def _from_row(row: Mapping[str, Any]) -> Attribution:
    text = tuple(row["text"])
    return Attribution(
        text=text[0] if len(text) == 1 else (text[0], text[1]),
        tokens=tuple(row["tokens"]),
        offsets=tuple((int(s), int(e)) for s, e in row["offsets"]),
        special=tuple(bool(s) for s in row["special"]),
        segments=tuple(int(s) for s in row["segments"]),
        sites=tuple(int(s) for s in row["sites"]),
        scores=np.asarray(row["scores"], dtype=np.float32).reshape(len(row["sites"]), len(row["tokens"])),
        prediction=row["prediction"],
        target=row["target"],
        method=row["method"],
        settings=json.loads(row["settings"]),
        merge=row["merge"],
    )


def save(attributions: Sequence[Attribution], path: str | os.PathLike[str]) -> Path:
    """Write attributions to a .parquet or .json file; the file appears whole or not at all."""
    path = Path(path)
    rows = [_row(a) for a in attributions]
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows, schema=_schema(pa)), part)
    elif path.suffix == ".json":
        part.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        raise FileError(f"cannot save attributions as {path.suffix or path.name!r}; use .parquet or .json")
    os.replace(part, path)
    return path


def load(path: str | os.PathLike[str]) -> list[Attribution]:
    """Read what `save` wrote."""
    path = Path(path)
    if not path.exists():
        raise FileError(f"no file {path}")
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = pq.read_table(path).to_pylist()
    elif path.suffix == ".json":
        rows = json.loads(path.read_text(encoding="utf-8"))
    else:
        raise FileError(f"cannot load attributions from {path.suffix or path.name!r}; use .parquet or .json")
    try:
        return [_from_row(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} does not hold attributions as masklens saves them ({error!r})") from error


def _schema(pa: Any) -> Any:
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
        }
    )
