"""The record of a language model's answer, with an explanation of each of its tokens. It does not need
torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, GetPydanticSchema, Strict, StrictBool
from pydantic_core.core_schema import no_info_after_validator_function

from .. import attribution
from ..attribution import LARGEST_SCORE, MOST_CELLS, MOST_TOKENS, Attribution, SavedSettings, Site, Word
from ..errors import FileError
from ..files import PlainText, check_writable, validate, whole
from ..files.formats import Columns, records
from ..files.parquet import column_type, to_parquet
from .units import Turn
from .verification import Verification, from_record, verification_record, verification_schema

Probability = Annotated[float, Strict(), Field(ge=0, le=1 + 1e-6)]
Count = Annotated[int, Strict(), Field(ge=0, le=10**9)]
Layer = Annotated[Site, Strict()]
Text = Annotated[PlainText, Field(max_length=10**8)]
Score = Annotated[float, Strict(), Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]


def _as_array(_: Any, handler: Any) -> Any:
    return no_info_after_validator_function(np.array, handler(list[list[list[Score | None]]]))


class Guess(NamedTuple):
    """A token and the probability that the model gives it."""

    token: Word
    probability: Probability


@dataclass(frozen=True, eq=False)
class Generation:
    """A prompt, the answer, and a score of every token or larger unit for each step of the answer.

    A step is a token of the answer, or the span of it that was asked about.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # of what is read from a file

    prompt: Text
    """the prompt as the model read it, with the chat template filled"""
    answer: Text
    ids: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_TOKENS)]
    """the ids of all tokens of prompt and answer"""
    units: tuple[Count, ...]
    """for each of the ids, the number of its unit in `tokens`"""
    tokens: Annotated[tuple[Word, ...], Field(min_length=1, max_length=MOST_TOKENS)]
    """the units of prompt and answer: tokens, or words, sentences, ... (see `kind`)"""
    offsets: tuple[tuple[Count, Count], ...]
    """for each unit, its first and end character in prompt + answer"""
    special: tuple[StrictBool, ...]
    """for each unit, whether it is a special token or added by the chat template; it is never removed"""
    turns: tuple[Turn, ...]
    steps: Annotated[tuple[Word, ...], Field(min_length=1)]
    """the names of the explained tokens of the answer (or of the span)"""
    pieces: tuple[Word, ...]
    """the text of each step"""
    places: tuple[Count, ...]
    """for each step, how many of the ids come before it"""
    targets: tuple[Annotated[tuple[Count, ...], Field(min_length=1)], ...]
    """for each step, the ids of its tokens: one, or those of a span"""
    rather_than: tuple[Count | None, ...]
    """for each step, the id of the token B if the step is "A rather than B", else None"""
    ends: tuple[Count, ...]
    """for each step, how many characters of prompt + answer come before it"""
    sites: Annotated[tuple[Layer, ...], Field(min_length=1)]
    scores: Annotated[np.ndarray, GetPydanticSchema(_as_array)]
    """(steps, sites, tokens) float32, 0 for tokens that do not come before the step"""
    probabilities: tuple[Probability, ...]
    """the probability of each step, after the text before it; of "A rather than B" that of A among the two"""
    runners_up: tuple[tuple[Guess, ...], ...]
    """for each step, the likeliest other tokens"""
    method: Word
    kind: Word = "tokens"
    """what `tokens` holds: tokens, words, sentences, turns or spans"""
    settings: SavedSettings = field(default_factory=dict)
    merge: Annotated[str, Field(pattern="^(sum|max|mean)$")] = "sum"
    logit_lens_sites: tuple[Layer, ...] = ()
    """the sites of `logit_lens`; they do not depend on `sites`"""
    logit_lens: tuple[tuple[Guess, ...], ...] = ()
    """for each step and each of `logit_lens_sites`, the likeliest token by the model's own head"""
    settled: tuple[Layer | None, ...] = ()
    """for each step, the site from which on its token stays the likeliest; None if it never does"""
    verification: tuple[Annotated[Verification, BeforeValidator(from_record)], ...] = ()
    """one verification per step; empty if it was not tried"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", np.asarray(self.scores, dtype=np.float32))
        shape = (len(self.steps), len(self.sites), len(self.tokens))
        if self.scores.shape != shape:
            raise ValueError(
                f"scores have shape {self.scores.shape}; {shape} (steps, sites, tokens) is needed"
            )
        for name, count in self._counts().items():
            if len(getattr(self, name)) != count:
                raise ValueError(f"{len(getattr(self, name))} {name} where {count} are needed")
        self._check_places()

    def _counts(self) -> dict[str, int]:
        tokens, steps = len(self.tokens), len(self.steps)
        each = ("pieces", "places", "targets", "rather_than", "ends", "probabilities", "runners_up")
        lens = steps if self.logit_lens_sites else 0
        counts = {"offsets": tokens, "special": tokens, "units": len(self.ids), **dict.fromkeys(each, steps)}
        return counts | {
            "logit_lens": lens,
            "settled": lens,
            "verification": steps if self.verification else 0,
        }

    def _check_places(self) -> None:
        count, length = len(self.tokens), len(self.text)
        if any(unit >= count for unit in self.units) or list(self.units) != sorted(self.units):
            raise ValueError(f"units must rise, and be below {count}, the number of tokens")
        if not all(0 < place <= len(self.ids) for place in self.places):
            raise ValueError(f"a step has seen between 1 and {len(self.ids)} tokens")
        spans = [*self.offsets, *(turn[1:] for turn in self.turns), *((0, end) for end in self.ends)]
        if not all(0 <= start <= end <= length for start, end in spans):
            raise ValueError(
                f"offsets, turns and ends must be in the {length} characters of prompt and answer"
            )
        for ids, other in zip(self.targets, self.rather_than, strict=True):
            if other is not None and (len(ids) > 1 or other == ids[0]):
                raise ValueError(f"rather_than compares one token with another, not {list(ids)} with {other}")
        if any(len(guesses) != len(self.logit_lens_sites) for guesses in self.logit_lens):
            raise ValueError(f"logit_lens must have {len(self.logit_lens_sites)} entries a step, one a layer")
        if not {*self.settled} <= {*self.logit_lens_sites, None}:
            raise ValueError("settled must be layers of logit_lens_sites")

    def __eq__(self, other: object) -> bool:
        return row(self) == row(other) if isinstance(other, Generation) else NotImplemented

    def __repr__(self) -> str:
        size = f"{len(self.steps)} steps x {len(self.sites)} layers x {len(self.tokens)} {self.kind}"
        return f"Generation({self.answer!r:.60}, {size}, {self.method})"

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def text(self) -> str:
        return self.prompt + self.answer

    def seen(self, step: int) -> int:
        """How many of the tokens (or units) come before a step; the last one may come before it in part."""
        return max(self.units[: self.places[step]]) + 1

    def step(self, step: int) -> Attribution:
        """One step as an attribution. Its text is the text before the step."""
        step = range(len(self))[step]
        count, last = self.seen(step), self.ends[step]
        return Attribution(
            text=self.text[:last],
            tokens=self.tokens[:count],
            offsets=tuple((min(start, last), min(end, last)) for start, end in self.offsets[:count]),
            special=self.special[:count],
            segments=(0,) * count,
            sites=self.sites,
            scores=self.scores[step, :, :count],
            prediction=self.likeliest(step),
            target=self.pieces[step],
            method=self.method,
            settings=self.settings,
            merge=self.merge,
            verification=self.verification[step] if self.verification else None,
        )

    def likeliest(self, step: int) -> str:
        """The token that the model itself finds likeliest at a step. If the step is "A rather than B", its
        piece."""
        if self.rather_than[step] is not None:
            return self.pieces[step]
        best = self.runners_up[step][:1]
        return best[0].token if best and best[0].probability > self.probabilities[step] else self.pieces[step]

    def attributions(self) -> list[Attribution]:
        """All steps as attributions."""
        return [self.step(i) for i in range(len(self))]

    def plot(self, ax: Any = None, site: int | str | None = None) -> Any:
        """Draw steps x tokens at one site, by default the first, and return the axes.

        `site` is a number, or the name of a layer such as "block 3".
        """
        from ..reports.heatmap import plot_steps

        return plot_steps(self, ax=ax, site=self.sites[0] if site is None else site)

    def _repr_html_(self) -> str:
        from ..reports.fragment import steps_fragment

        return steps_fragment(self)


def row(generation: Generation) -> dict[str, Any]:
    """The record as lists, strings and numbers, for JSON. Scores that are not finite become None."""
    scores = generation.scores.astype(object)
    scores[~np.isfinite(generation.scores)] = None
    made = {**asdict(generation), "scores": scores.tolist()}
    for name in ("runners_up", "logit_lens"):
        made[name] = [[guess._asdict() for guess in some] for some in made[name]]
    made["turns"] = [turn._asdict() for turn in generation.turns]
    made["verification"] = [verification_record(proof) for proof in generation.verification]
    made["settings"] = dict(generation.settings)
    return made


Record = Attribution | Generation


def save(made: Record | Sequence[Record], path: str | os.PathLike[str]) -> Path:
    """Write attributions, or generations, to a .parquet or .json file. It is written completely or not at
    all.

    Scores that are not finite are written as null, and are read back as nan.
    """
    path, several = Path(path), [made] if isinstance(made, Record) else list(made)
    generations = [one for one in several if isinstance(one, Generation)]
    if not generations:
        return attribution.save([one for one in several if isinstance(one, Attribution)], path)
    if len(generations) < len(several):
        raise FileError("a file holds attributions or generations, not both; save them to two files")
    if path.suffix not in (".parquet", ".json"):
        raise FileError(f"cannot save generations as {path.suffix or path.name!r}; use .parquet or .json")
    check_writable(path)
    with whole(path) as part:
        (_write_parquet if path.suffix == ".parquet" else _write_json)(
            [row(one) for one in generations], part
        )
    return path


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa

    cells = [{**one, "settings": json.dumps(one["settings"], default=str)} for one in rows]
    path.write_bytes(to_parquet(pa.Table.from_pylist(cells, schema=schema(pa))))


def _write_json(rows: Sequence[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, allow_nan=False, default=str), encoding="utf-8")


def load(path: str | os.PathLike[str]) -> list[Any]:
    """Read what `save` wrote: attributions, or generations."""
    path = Path(path)
    if path.suffix not in (".parquet", ".json"):
        raise FileError(f"cannot load {path.suffix or path.name!r}; use .parquet or .json")
    return load_generations(path) if holds_generations(path) else attribution.load(path)


def holds_generations(path: Path) -> bool:
    """Whether the first row of a file is one of a generation."""
    wanted = Columns(("runners_up",))
    try:
        first = next(iter(records(str(path), wanted, 1)), (0, ""))[1]
    except FileError:
        return False  # whatever else is wrong, the reader of attributions reports it
    return isinstance(first, Mapping) and first.get("runners_up") is not None


def load_generations(path: Path) -> list[Generation]:
    found, cells = [], 0
    for one in _rows(path):
        found.append(one)
        cells += one.scores.size + len(one.ids)
        if cells > MOST_CELLS:
            raise FileError(f"{path} holds more scores than can be taken into memory; save fewer to a file")
    return found


def _rows(path: Path) -> Iterator[Generation]:
    for number, cells in records(str(path), Columns(tuple(one.name for one in fields(Generation)))):
        if isinstance(cells, str):
            raise FileError(f"row {number} of {path} cannot be used: {cells}")
        yield validate(Generation, cells, f"row {number} of {path}")


def schema(pa: Any) -> Any:
    """The columns of a Parquet file of generations."""
    known = {
        "scores": pa.list_(pa.list_(pa.list_(pa.float32()))),
        "settings": pa.string(),
        "verification": pa.list_(verification_schema(pa)),
    }
    hints = get_type_hints(Generation).items()
    return pa.schema({name: known[name] if name in known else column_type(hint) for name, hint in hints})
