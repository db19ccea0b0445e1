"""`evaluate`: several explanations of the same texts, one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Any

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError, check_seed, did_you_mean
from ..model.subject import as_subject
from ..progress import track
from ..tasks.answers import answer_scores
from ..tasks.spans import QuestionAnswering
from ..words import Span
from . import faithfulness
from .faithfulness import Game
from .limits import Removed, find_limits, scaled
from .masking import Views
from .plausibility import plausibility
from .ranking import Ranking, random_rankings, rank
from .robustness import warn_of_problems
from .specificity import Rarity, class_words, no_rarity
from .table import Cell, Table, cell, cell_of_draws
from .verify import as_attributions, refuse_answers

Measured = Game | np.ndarray


@dataclass(frozen=True)
class Metric:
    """A measure of faithfulness, with one value per text."""

    function: Callable[[Views, Ranking], Measured]
    better: str
    """"higher" or "lower" """
    area: Removed | None = None
    """for areas under a curve, which can be normalised: which tokens are removed; None for other measures"""


METRICS: dict[str, Metric] = {
    "revealing": Metric(faithfulness.revealing, "higher", area="rest"),
    "hiding": Metric(faithfulness.hiding, "lower", area="top"),
    "hiding_least_first": Metric(
        partial(faithfulness.hiding, order="least_important_first"), "higher", area="rest"
    ),
    "comprehensiveness": Metric(faithfulness.comprehensiveness, "higher"),
    "sufficiency": Metric(faithfulness.sufficiency, "lower"),
    "aopc_comprehensiveness": Metric(faithfulness.aopc_comprehensiveness, "higher", area="top"),
    "aopc_sufficiency": Metric(faithfulness.aopc_sufficiency, "lower", area="rest"),
    "aopc_by_token": Metric(faithfulness.aopc_by_token, "higher", area="top"),
    "aopc_sufficiency_by_token": Metric(faithfulness.aopc_sufficiency_by_token, "lower", area="rest"),
    "ferret_comprehensiveness": Metric(faithfulness.ferret_comprehensiveness, "higher"),
    "ferret_sufficiency": Metric(faithfulness.ferret_sufficiency, "lower"),
    "log_odds": Metric(faithfulness.log_odds, "lower"),
    "loo_correlation": Metric(faithfulness.loo_correlation, "higher"),
    "divergence": Metric(faithfulness.divergence, "lower"),
}
"""the measures of faithfulness by name"""

DEFAULT = (
    "revealing",
    "hiding",
    "aopc_comprehensiveness",
    "aopc_sufficiency",
    "log_odds",
    "loo_correlation",
    "divergence",
)
PLAUSIBILITY = ("iou_f1", "token_f1", "auprc")
OVERLAP = "overlap"


def evaluate(
    subject: Any,
    attributions: Mapping[str, Sequence[Attribution]],
    labels: Sequence[Any] | None = None,
    metrics: Sequence[str] | None = None,
    rationales: Sequence[Sequence[Span]] | None = None,
    rarity: Rarity = no_rarity,
    top_words: int = 50,
    random_draws: int = 20,
    replace: Any = "mask",
    seed: int = 0,
    normalised: bool = False,
) -> Table:
    """Measure several sets of attributions of the same texts, with random ones for comparison.

        table = evaluate(subject, {"gradient": a, "lens": b}, labels=labels, metrics=["revealing", "hiding"])

    Args:
        attributions: sets by name. A set has one attribution per text; all sets have the same texts in the
            same order. A set with several sites gets one row per site, NAME@SITE.
        labels: gold labels, ids or names. Without them accuracy is agreement with the model's own decision.
            For question answering give the right answer, or a list of them, for each text. Accuracy is then
            exact match, and the table's settings have exact match and F1 of the model's own answers.
        metrics: names from METRICS, "iou_f1", "token_f1" and "auprc" (with `rationales`), or "overlap".
        rationales: for each text, the character spans that people marked.
        rarity: how much a word counts in "overlap"; see specificity.document_rarity.
        random_draws: the number of random orders in the row "random"; 0 leaves the row out.
        replace: how tokens are hidden: "mask", "drop", "fill", a Fill, or a vector.
        normalised: scale the area scores (games and AOPC) between those of each text's best and worst order,
            so that they can be compared between models (see limits.py). A search finds these orders; it
            takes about 3 n^2 forward passes over a text of n tokens. A text whose orders all have the same
            score is left out.
    """
    check_seed(seed)
    names = check_metrics(metrics, rationales)
    subject, sets = as_subject(subject), _check_sets(attributions)
    first = next(iter(sets.values()))
    if labels is not None:
        subject.task.check_labels(labels, len(first))
    views = Views(subject, [a.text for a in first], labels, shared_targets(sets), how=replace)
    faithful = [name for name in names if name in METRICS]
    answered = _answered(views)
    table: dict[str, dict[str, Cell]] = {}
    hits: dict[str, dict[str, np.ndarray]] = {}
    for row, found in measure(views, sets, faithful, random_draws, seed, normalised):
        table[row] = {name: _cell(some, seed) for name, some in found.items()}
        games = {name: [one.hits for one in some if isinstance(one, Game)] for name, some in found.items()}
        hits[row] = {name: np.mean(some, axis=0) for name, some in games.items() if some}
    for row, site, chosen in attribution_rows(sets):
        table[row] |= _plausible(names, chosen, rationales, site, seed)
        if OVERLAP in names:
            table[row][OVERLAP] = _overlap(chosen, rarity, site, top_words, seed)
    return Table(
        rows=table,
        better=_directions(names),
        seconds={row: getattr(chosen, "seconds", None) for row, _, chosen in attribution_rows(sets)},
        curves={row: {name: some.mean(0).tolist() for name, some in at.items()} for row, at in hits.items()},
        hits=hits,
        notes=[note for name, chosen in sets.items() for note in warn_of_problems(name, chosen)]
        + [f"the model's own answers: {name} {value:.3f}" for name, value in answered.items()],
        settings=settings_of(len(views), labels is not None, replace, random_draws, seed, normalised)
        | answered,
    )


def settings_of(
    texts: int, labelled: bool, replace: Any, draws: int, seed: int, normalised: bool
) -> dict[str, Any]:
    """The settings that the table records."""
    return {
        "texts": texts,
        "accuracy": "gold labels" if labelled else "agreement with the model",
        "replace": replace if isinstance(replace, str) else type(replace).__name__,
        "random_draws": draws,
        "seed": seed,
        "normalised": normalised,
    }


def _answered(views: Views) -> dict[str, float]:
    """For question answering with gold answers: exact match and F1 of the model's own answers."""
    task = views.subject.task
    if views.gold is None or not isinstance(task, QuestionAnswering):
        return {}
    said = task.describe(task.predict(views.reference.to(views.batch.valid.device), views.batch), views.batch)
    return answer_scores(said, views.gold)


def check_metrics(metrics: Sequence[str] | None, rationales: Any = None) -> tuple[str, ...]:
    """The metrics' names, the default ones for None; an unknown one is an error."""
    names = (
        tuple(metrics) if metrics is not None else DEFAULT + (PLAUSIBILITY if rationales is not None else ())
    )
    known = (*METRICS, *PLAUSIBILITY, OVERLAP)
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise MethodError(f"no metric {unknown[0]!r}; there are {', '.join(known)}{hint}")
    if rationales is None and any(name in PLAUSIBILITY for name in names):
        raise MethodError(
            "iou_f1, token_f1 and auprc compare with people: give rationales=, spans for each text"
        )
    return names


def _check_sets(sets: Any) -> dict[str, Sequence[Attribution]]:
    if not isinstance(sets, Mapping):
        refuse_answers(sets if isinstance(sets, Iterable) else [sets], "evaluate")
        raise MethodError(
            f"evaluate takes explained texts by name, {{name: attributions}}, not a {type(sets).__name__}"
        )
    for chosen in sets.values():
        as_attributions(chosen, "evaluate")
    if not sets or not all(len(chosen) for chosen in sets.values()):
        raise MethodError("nothing to evaluate; give {name: attributions} with at least one attribution each")
    return dict(sets)


def attribution_rows(
    sets: Mapping[str, Sequence[Attribution]],
) -> Iterator[tuple[str, int, Sequence[Attribution]]]:
    for name, chosen in sets.items():
        sites = chosen[0].sites
        for site in sites:
            yield (name if len(sites) == 1 else f"{name}@{site}"), site, chosen


def shared_targets(sets: Mapping[str, Sequence[Attribution]]) -> list[str] | None:
    """The targets that were explained, if they are not the model's decisions. All sets must agree in them."""
    wanted = {tuple(a.target for a in chosen) for chosen in sets.values() if any(a.target for a in chosen)}
    if len(wanted) > 1:
        raise MethodError("the sets explain different targets; evaluate them apart")
    own = all(a.target == a.prediction for chosen in sets.values() for a in chosen)
    return None if own else list(wanted.pop())


def measured_values(found: Measured) -> np.ndarray:
    return found.areas if isinstance(found, Game) else found


def measure(
    views: Views,
    sets: Mapping[str, Sequence[Attribution]],
    names: Sequence[str],
    draws: int,
    seed: int,
    normalised: bool = False,
) -> Iterator[tuple[str, dict[str, list[Measured]]]]:
    """For each row of the table, the results of each measure: one, or for random orders one per draw."""
    areas = [name for name in names if METRICS[name].area] if normalised else []
    limits = _limits(views, areas)
    for row, site, chosen in track(list(attribution_rows(sets)), "measuring"):
        ranking = rank(views, chosen, site)
        yield row, {name: [_measured(name, views, ranking, limits)] for name in names}
    if draws and names:
        rankings = random_rankings(views, draws, seed)
        drawn = [
            [_measured(name, views, one, limits) for name in names]
            for one in track(rankings, "random orders")
        ]
        yield "random", dict(zip(names, map(list, zip(*drawn, strict=True)), strict=True))


def _limits(views: Views, areas: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each area score, the values of each text's best and worst order."""
    if not areas:
        return {}
    limits = {}
    orders = find_limits(views)
    for name in areas:
        metric = METRICS[name]
        best, worst = (metric.function(views, order) for order in orders[metric.area or "top"])
        limits[name] = measured_values(best), measured_values(worst)
    return limits


def _measured(
    name: str, views: Views, ranking: Ranking, limits: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Measured:
    """The result of a measure for the texts, scaled between its limits if these are known."""
    found = METRICS[name].function(views, ranking)
    if name not in limits:
        return found
    return changed(found, limits=limits[name]) if isinstance(found, Game) else scaled(found, *limits[name])


def _cell(found: Sequence[Measured], seed: int) -> Cell:
    values = np.stack([measured_values(one) for one in found])
    return cell(values[0], seed=seed) if len(values) == 1 else cell_of_draws(values, seed=seed)


def _plausible(
    names: Sequence[str], chosen: Sequence[Attribution], rationales: Any, site: int, seed: int
) -> dict[str, Cell]:
    wanted = [name for name in names if name in PLAUSIBILITY]
    if not wanted:
        return {}
    found = plausibility(chosen, rationales, site)
    return {name: cell(found[name], seed=seed) for name in wanted}


def _overlap(chosen: Sequence[Attribution], rarity: Rarity, site: int, count: int, seed: int) -> Cell:
    words = class_words(chosen, rarity, site)
    return Cell(words.overlap(count), *words.overlap_interval(count, seed=seed))


def _directions(names: Sequence[str]) -> dict[str, str]:
    known = {name: metric.better for name, metric in METRICS.items()}
    known |= dict.fromkeys(PLAUSIBILITY, "higher") | {OVERLAP: "lower"}
    return {name: known[name] for name in names}
