"""The data that the viewer draws (`document` makes the page around it).

Scores are stored as 16-bit numbers, so that a file with many texts stays small. Control and bidirectional
characters of texts are removed here.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TargetError
from ..records.layers import row_name, site_name
from ..tasks.answers import exact_match
from ..words import word_groups
from .facts import answer, classes, sums
from .labels import PARTS, chance, emerged, part_names, readable_tokens, shortened, visible
from .layers import layers_data
from .slices import add_columns

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..evaluation.table import Table
    from ..methods.logit_lens import LayerPredictions
    from ..records.verification import Verification

STEPS = 2**15 - 1
"""a score is stored as a whole number from -STEPS to STEPS, where STEPS stands for the site's largest
score"""
MISSING = -(2**15)
GAMES = ("revealing", "hiding")
"""the metrics that are shown first"""
LONGEST_TOKEN = 200


@dataclass(frozen=True)
class Entry:
    """An attribution as the viewer shows it."""

    attribution: Attribution
    name: str
    """the heading: the method, or a name that distinguishes several results of one method"""
    proofs: Sequence[Verification] = ()
    """the verifications, one per site; empty if they were not tried"""


@dataclass(frozen=True)
class Chart:
    """A chart with lines over a common axis."""

    title: str
    series: Mapping[str, Sequence[float | None]]
    """each as long as `x`"""
    x: Sequence[float]
    x_name: str = ""
    y_name: str = ""
    note: str = ""
    ticks: Sequence[str] = ()
    """names of the points on the axis, instead of numbers"""
    measure: str = ""
    """the measure whose means are drawn, so that the viewer can compute them for some texts (see
    slices.js)"""
    by_text: Sequence[Any] = ()
    """if there is no such measure: the values (lines, texts, x), for the same purpose"""


@dataclass(frozen=True)
class Grid:
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    heat: Sequence[int] = ()
    """the columns whose cells are coloured by their numbers"""
    percent: Sequence[int] = ()
    """the columns of shares, which are shown in percent"""
    lead: bool = False
    """whether this table comes first in the report"""
    measures: Sequence[tuple[str, int]] = ()
    """for tables of means: name and site of each row, so that the viewer can compute the means for some texts
    (see slices.js)"""


@dataclass(frozen=True)
class Cloud:
    """Words by weight, the heaviest first."""

    title: str
    words: Sequence[tuple[str, float]]
    note: str = ""
    name: str = ""
    """the set whose scores are summed, over texts with the predicted class in the title; `site` is the
    site"""
    site: int = 0


def layer_chart(
    title: str,
    curves: Mapping[str, Mapping[int, float]],
    y_name: str = "",
    note: str = "",
    measure: str = "",
) -> Chart:
    """A chart over layers of values by site."""
    sites = sorted({site for curve in curves.values() for site in curve})
    series = {name: [curve.get(site) for site in sites] for name, curve in curves.items()}
    return Chart(title, series, sites, "layer", y_name, note, [site_name(site) for site in sites], measure)


Panel = Chart | Grid | Cloud
"""what a report says about a set of texts"""


def report_data(
    entries: Iterable[Entry],
    title: str = "masklens report",
    labels: Sequence[str | Sequence[str]] | None = None,
    panels: Sequence[Panel] = (),
    segments: Sequence[str] | None = None,
    answers: Iterable[dict[str, Any]] = (),
    columns: Mapping[str, Sequence[Any]] | None = None,
    layers: Mapping[Any, LayerPredictions] | None = None,
) -> dict[str, Any]:
    """Everything the viewer shows, ready for JSON.

    Entries of the same text are grouped. `labels` has the right answer of each text, or a list of right
    answers, which are compared as in SQuAD. `segments` has the names of the two texts of a pair, by default
    those of the first pair. `columns` has further facts of each text, by which the viewer can filter.
    `answers` are generations (see reports/generation.py), `layers` what each layer would predict, by text.
    """
    groups = by_text(entries)
    found = (names for group in groups for entry in group if (names := part_names(entry.attribution)))
    if labels is not None and len(labels) != len(groups):
        raise TargetError(f"{len(labels)} gold labels for {len(groups)} texts; give one a text")
    texts = [text_data(group, (layers or {}).get(group[0].attribution.text)) for group in groups]
    texts += answers
    for text, group, label in zip(texts, groups, labels or [], strict=False):
        several = [label] if isinstance(label, str) else list(dict.fromkeys(label))
        text["label"] = visible(" / ".join(several))
        text["wrong"] = not _right(group[0].attribution.prediction, label)
    add_columns(texts[: len(groups)], columns or {})
    return {
        "title": visible(title),
        "segments": [visible(name) for name in segments or next(found, PARTS)],
        "settings": share_settings(texts),
        "texts": texts,
        "parts": [panel_data(panel) for panel in panels],
    }


def _right(said: str, label: str | Sequence[str]) -> bool:
    if isinstance(label, str):
        return said == label
    return exact_match(said, label) == 1


def share_settings(texts: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Move the settings of all maps into one list without repeats; each map keeps an index into the list."""
    known: dict[str, int] = {}
    for text in texts:
        for one in text["maps"]:
            one["settings"] = known.setdefault(json.dumps(one["settings"]), len(known))
    return [json.loads(settings) for settings in known]


def by_text(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Group the entries by text. An entry whose text, name and target occurred before starts a new group."""
    groups: dict[tuple[Any, int], list[Entry]] = {}
    seen: dict[tuple[Any, str, str], int] = {}
    for entry in entries:
        text = entry.attribution.text
        key = (text, entry.name, entry.attribution.target)
        again = seen.get(key, 0)
        seen[key] = again + 1
        groups.setdefault((text, again), []).append(entry)
    return list(groups.values())


def text_data(group: Sequence[Entry], layers: LayerPredictions | None = None) -> dict[str, Any]:
    """One text with all its explanations, and what each layer would predict if it is known."""
    first = group[0].attribution
    layouts: dict[tuple[Any, ...], dict[str, Any]] = {}
    maps = []
    for entry in group:
        a = entry.attribution
        key = (a.tokens, a.offsets)
        layouts.setdefault(key, layout_data(a))
        maps.append({"layout": list(layouts).index(key), **map_data(entry)})
    return {
        "text": [visible(part, lines=True) for part in first.sources],
        "prediction": visible(first.prediction),
        **classes(first),
        "layouts": list(layouts.values()),
        "maps": maps,
        **layers_data(layers),
    }


def layout_data(a: Attribution) -> dict[str, Any]:
    """The tokens of a text, how they read in the text, and the words that they make up."""
    sources = a.sources
    groups = word_groups(sources, a.tokens, a.offsets, a.segments, a.special)
    word_of = {i: number for number, group in enumerate(groups) for i in group}
    tokens = [_token(token) for token in readable_tokens(a)]
    pieces = [_piece(a, i) or token for i, token in enumerate(tokens)]
    raw = {i: _token(name) for i, name in enumerate(a.tokens) if _token(name) != tokens[i]}
    layout: dict[str, Any] = {
        "tokens": tokens,
        "pieces": [None if piece == token else piece for piece, token in zip(pieces, tokens, strict=True)],
        "special": [i for i, special in enumerate(a.special) if special],
        "glued": [i for i in range(1, len(a.tokens)) if _glued(a, i)],
        "words": [word_of[i] for i in range(len(a.tokens))],
        "names": [_token(word) for word in readable_tokens(a.words())],
    } | ({"raw": raw} if raw else {})
    return layout if len(sources) == 1 else {**layout, "segments": list(a.segments), **answer(a)}


def _token(token: str) -> str:
    return shortened(visible(token), LONGEST_TOKEN)


def _piece(a: Attribution, i: int) -> str:
    """A token as it is written in the text; empty where it stands for no characters."""
    start, end = a.offsets[i]
    return "" if a.special[i] else _token(a.sources[a.segments[i]][start:end].strip())


def _glued(a: Attribution, i: int) -> bool:
    """Whether a token begins where the one before it ends."""
    if a.special[i] or a.special[i - 1] or a.segments[i] != a.segments[i - 1]:
        return False
    start, end = a.offsets[i]
    source = a.sources[a.segments[i]]
    return start == a.offsets[i - 1][1] and start < end and not source[start].isspace()


def map_data(entry: Entry) -> dict[str, Any]:
    """The scores of one attribution, with its method, target and settings."""
    a = entry.attribution
    made: dict[str, Any] = {
        "name": visible(entry.name),
        "method": visible(a.method),
        "target": visible(a.target),
        "over": over(a),
        "merge": a.merge,
        "sites": list(a.sites),
        "settings": {visible(row_name(str(name))): visible(str(value)) for name, value in a.settings.items()},
        **quantised(a.scores),
        **sums(a),
    }
    if a.prediction != entry.attribution.target:
        made["prediction"] = visible(a.prediction)
    if emerged(a):
        made["emerged"] = visible(emerged(a))
    if entry.proofs:
        made["proofs"] = [proof_data(proof) for proof in entry.proofs]
    return made


def over(a: Attribution) -> str:
    """What was scored: the inputs, or the states at each site. A lens says so itself."""
    said = a.settings.get("over")
    return str(said) if said else "inputs" if a.sites in ((0,), (1,)) else "states"


VERDICTS = ("sufficient", "no better than random", "not sufficient", "ties", "no token needed")


def proof_data(proof: Verification) -> list[Any]:
    """A verification in the form that data.js reads: verdict number, counts, probabilities, details, removed
    tokens."""
    probabilities = (proof.probability_before, proof.probability_after)
    figures = (*probabilities, proof.divergence, proof.p_value, proof.random_needed)
    without = (proof.probability_without, proof.random_without)
    return [
        None if proof.verdict is None else VERDICTS.index(proof.verdict),
        int(proof.prediction_kept),
        proof.needed,
        proof.tokens,
        *(_clean(value) for value in figures),
        *(None if value is None else chance(value) for value in without),
        list(proof.removed),
        proof.opened,
    ]


def quantised(scores: np.ndarray) -> dict[str, Any]:
    """Each site's largest absolute score, and all scores as 16-bit parts of it, low byte first, in base64."""
    finite = np.isfinite(scores)
    largest = np.where(finite, np.abs(scores), 0).max(axis=1, initial=0.0, keepdims=True)
    parts = np.where(finite, scores, 0) / np.where(largest > 0, largest, 1.0) * STEPS
    whole = np.where(finite, np.rint(parts), MISSING).astype("<i2")
    return {
        "largest": [float(f"{value:.7g}") for value in largest[:, 0].tolist()],
        "scores": base64.b64encode(whole.tobytes()).decode(),
    }


def panel_data(panel: Panel) -> dict[str, Any]:
    """A chart, table or cloud for JSON."""
    fields = asdict(panel)
    if isinstance(panel, Chart):
        fields["series"] = list(panel.series.items())  # a list, so that the order is kept for all names
    return {"kind": type(panel).__name__.lower(), **_clean(fields)}


def _clean(value: Any) -> Any:
    """Plain data with safe text and rounded numbers; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {visible(str(name)): _clean(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_clean(one) for one in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value if value is None or isinstance(value, bool | int) else visible(str(value))


def evaluation_panels(table: Table) -> list[Panel]:
    """The result of `masklens.evaluate` as panels: the curves of the games, and the table."""
    games = in_order({game for curves in table.curves.values() for game in curves})
    return [*(_game_chart(table, game) for game in games), _metrics_grid(table)]


def in_order(metrics: Iterable[str]) -> list[str]:
    """The metrics in the order in which every report shows them: the games, then the others by name."""
    return sorted(metrics, key=lambda name: (name not in GAMES, name != GAMES[0], name))


def with_arrow(table: Table, metric: str) -> str:
    """The name of a metric, with an arrow that says whether high or low is better."""
    return metric + {"higher": " ↑", "lower": " ↓"}.get(table.better.get(metric, ""), "")


def _game_chart(table: Table, game: str) -> Chart:
    rows = _best_rows(table, game)
    series = {row_name(row): table.curves[row][game] for row in rows}
    shares = np.linspace(0, 100, len(next(iter(series.values())))).tolist()
    note = f"Most important tokens first: {table.better[game]} is better."
    if len(rows) < len(table.curves):
        note += " Of several layers, the best is drawn."
    done = "hidden" if game.startswith("hiding") else "revealed"
    hits = [table.hits[row][game] for row in rows if game in table.hits.get(row, {})]
    by_text = hits if len(hits) == len(rows) else []
    axis = f"% of tokens {done}"
    return Chart(f"The {game} game", series, shares, axis, "accuracy", note, by_text=by_text)


def _best_rows(table: Table, metric: str) -> list[str]:
    """One row for each name; for names with several sites (NAME@SITE), the best site."""
    sign = -1 if table.better[metric] == "lower" else 1
    best: dict[str, str] = {}
    for row in (row for row, curves in table.curves.items() if metric in curves):
        name = row.partition("@")[0]
        known = best.setdefault(name, row)
        if sign * table[row][metric].value > sign * table[known][metric].value:
            best[name] = row
    return list(best.values())


def _metrics_grid(table: Table) -> Grid:
    metrics = in_order(table.metrics)
    columns = ["", *(with_arrow(table, name) for name in metrics)]
    rows = [
        [row_name(row), *(cells[name].value if name in cells else None for name in metrics)]
        for row, cells in table.rows.items()
    ]
    return Grid("Faithfulness", columns, rows, " ".join(table.notes))
