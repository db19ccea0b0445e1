"""`explain`: one call for every method, over any number of texts, one batch in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..attribution import Attribution, Explanations, Text
from ..errors import OutputError, SiteError, check_seed
from ..model.batch import Batch, arriving, as_texts
from ..model.known import Heard
from ..model.locks import locks_of
from ..model.memory import BatchSize, tokens_at_once
from ..model.modes import outside_inference_mode
from ..model.nans import Look, looking_later
from ..model.subject import Subject, as_subject
from ..progress import showing, stage, step
from ..records.layers import as_site
from ..tasks.base import Task, per_text
from .registry import Method, Request, find
from .usual import usual_method

T = TypeVar("T")

TOKENISED = 1024
"""texts that are tokenised together"""
WINDOWS_AT_ONCE = 32
"""windows of a long context that go through the model at once, where no batch size is given"""


def explain(
    subject: Any,
    texts: Text | Iterable[Text],
    method: str | None = None,
    target: Any = None,
    batch_size: int | None = None,
    sites: Sequence[int | str] | str | None = None,
    baselines: Any = None,
    seed: int = 0,
    show_progress: bool = False,
    windows: int | None = None,
    **options: Any,
) -> Explanations:
    """Explain the model's output for each text; the results, a list, are in the order of the texts.

    Args:
        subject: a Subject, or a Hugging Face pipeline.
        texts: a text, or a list, column or generator of them; a text is a string or a pair of strings.
        method: a name from `masklens.methods()`; by default "integrated_gradients", and for the next token of
            a language model "gradient".
        target: a class id or name (one, or a list with one per text); by default the predicted one.
        batch_size: texts that go through the model at once; by default as many as are fast and fit into
            memory.
        sites: numbers of sites or names of layers such as "block 3", "all" (those at which the method, or
            its lens, has scores), or None for the method's own choice.
        baselines: what stands for an absent token, for the methods that need it.
        windows: for question answering, by how many tokens windows over a context that is too long for the
            model overlap, such as 128. The window with the best answer is explained; the record is of that
            window, and its settings say where the window and the answer begin in the whole context.
        options: the method's own options; an unknown one is an error.
    """
    subject = as_subject(subject)
    chosen = find(method or usual_method(subject))
    chosen.check_options(list(options))
    check_seed(seed)
    options = chosen.prepare(subject, options)
    texts, start = as_texts(texts), time.perf_counter()
    where = chosen_sites(subject, chosen, sites, options.get("lens"))
    targets = per_text(target, len(texts))
    texts, notes = _windowed(subject, texts, targets, windows, batch_size or WINDOWS_AT_ONCE)
    settings = {"seed": seed, "baselines": baselines, **options}
    size = BatchSize(batch_size, tokens_at_once(subject.module, subject.device))
    results: list[Attribution | None] = [None] * len(texts)
    heard, shown = Heard(subject), shown_settings({**chosen.options, **settings})
    with (
        showing(show_progress),
        step(chosen.name),
        stage("texts", len(texts)) as update,
        outside_inference_mode(),
    ):
        for rows, computed in one_behind(_computed(subject, chosen, texts, targets, where, settings, size)):
            computed.wait()
            heard.add(rows, computed.batch, computed.reference)
            for i, attribution in zip(rows, records(computed, subject.task, chosen, shown), strict=True):
                results[i] = _noted(attribution, notes[i])
            update(advance=len(rows))
        heard.remember(subject, targets)
    return Explanations((a for a in results if a is not None), time.perf_counter() - start)


def _noted(attribution: Attribution, note: dict[str, Any]) -> Attribution:
    return replace(attribution, settings={**attribution.settings, **note}) if note else attribution


def _windowed(
    subject: Subject, texts: list[Text], targets: Sequence[Any], overlap: int | None, batch_size: int
) -> tuple[list[Text], list[dict[str, Any]]]:
    """The texts, each too long pair cut to its best window, and what the records are to say about that."""
    if overlap is None:
        return texts, [{} for _ in texts]
    from ..model.windows import best_windows

    return best_windows(subject, texts, overlap, targets, batch_size)


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def chosen_sites(
    subject: Subject, method: Method, sites: Sequence[int | str] | str | None, lens: Any
) -> tuple[int, ...]:
    """The sites asked for; by default those of the lens, or the method's own."""
    known = method.all_sites(subject) if lens is None else lens.sites
    if sites is None:
        return method.default_sites(subject) if lens is None else known
    if isinstance(sites, str) and sites == "all":
        return known
    chosen = subject.check_sites(map(as_site, [sites] if isinstance(sites, str | int) else sites))
    wrong = [site for site in chosen if site not in known]
    if wrong:
        raise SiteError(f"{method.name} has no site {wrong[0]}; it has sites {known}")
    return chosen


def _encoded(
    subject: Subject, texts: Sequence[Text], targets: Sequence[Any]
) -> Iterator[tuple[list[int], Batch]]:
    """Texts of like length tokenised together on the CPU, with their numbers, the longest first."""
    order = sorted(range(len(texts)), key=lambda i: -_length(texts[i]))
    for start in range(0, len(order), TOKENISED):
        rows = order[start : start + TOKENISED]
        yield rows, subject.tokenized([texts[i] for i in rows], [targets[i] for i in rows])


class Computed:
    """What the device computed for a batch, on its way to the CPU: the next batch need not wait for it."""

    def __init__(self, batch: Batch, request: Request, scores: Tensor, looks: Sequence[Look] = ()) -> None:
        self.sites, self.expected, self._looks = request.sites, request.expected, looks
        self.batch = batch.arriving()
        self.notes = [request.notes_on(i) for i in range(len(batch))]
        self.reference, self.target = arriving(request.reference), arriving(request.target)
        """the unedited output, and what was explained of it"""
        self.scores = arriving(scores.detach().float())
        """(examples, sites, tokens)"""
        used = {one.device for one in (scores, request.reference, request.batch.valid) if one.is_cuda}
        self._copied = [torch.cuda.current_stream(device).record_event() for device in used]
        """a model on several GPUs, or scores made on the CPU: each device has its own queue"""

    def wait(self) -> None:
        """Wait until all has arrived. Outputs that are NaN are an OutputError."""
        for event in self._copied:
            event.synchronize()
        for look in self._looks:
            look.check()


def _computed(
    subject: Subject,
    method: Method,
    texts: Sequence[Text],
    targets: Sequence[Any],
    sites: tuple[int, ...],
    settings: dict[str, Any],
    size: BatchSize,
) -> Iterator[tuple[list[int], Computed]]:
    """The numbers of texts and what is computed for them, in batches that fit into memory."""
    for places, encoded in _encoded(subject, texts, targets):
        lengths = encoded.lengths.tolist()

        def work(rows: list[int]) -> Computed:
            wanted = [targets[places[i]] for i in rows]  # noqa: B023
            batch = encoded.take(rows).first_columns(max(lengths[i] for i in rows))  # noqa: B023
            with _models_at_work(subject, settings), looking_later() as looks:
                there = batch.to(subject.device)
                request = Request(subject, there, sites, wanted, settings["seed"], settings["baselines"])
                return Computed(batch, request, run_method(request, method, settings), looks)

        for rows in size.cut(lengths):
            for some, computed in size.within_memory(work, rows):
                yield [places[i] for i in some], computed


def one_behind(items: Iterator[T]) -> Iterator[T]:
    """The items, each when the next one has begun: a GPU computes a batch while the last one is read."""
    last = next(items, None)
    for item in items:
        if last is not None:
            yield last
        last = item
    if last is not None:
        yield last


@contextmanager
def _models_at_work(subject: Subject, settings: dict[str, Any]) -> Iterator[None]:
    """Other threads wait for all the models that a method uses: the subject's, and an LM head."""
    others = [value for value in settings.values() if isinstance(value, nn.Module)]
    with locks_of(subject.module, *others), subject.frozen():
        yield


def run_method(request: Request, method: Method, settings: dict[str, Any]) -> Tensor:
    """A method's scores for one batch: (examples, sites, tokens)."""
    options = {name: value for name, value in settings.items() if name not in ("seed", "baselines")}
    with _models_at_work(request.subject, settings):
        return method.function(request, **options)


def records(computed: Computed, task: Task, method: Method, settings: dict[str, Any]) -> list[Attribution]:
    """Attributions of a batch's texts; `settings` as records show them."""
    batch = computed.batch
    special, segments = batch.by_text(batch.special), batch.by_text(batch.segments)
    scores = _by_text(finite_scores(method, computed.scores), batch.valid.numpy())
    predicted = task.predict(computed.reference, batch)
    predictions, answers = task.describe(predicted, batch), task.answers(predicted, batch)
    probabilities = task.probabilities(computed.reference)
    targets = task.describe(computed.target, batch)
    return [
        Attribution(
            text=text,
            tokens=batch.tokens[i],
            offsets=batch.offsets[i],
            special=special[i],
            segments=segments[i],
            sites=computed.sites,
            scores=scores[i],
            prediction=predictions[i],
            target=targets[i],
            method=method.name,
            settings=settings | computed.notes[i],
            merge=method.merge,
            parts=() if isinstance(text, str) else task.parts,
            probabilities=probabilities[i],
            answer=answers[i],
            expected=computed.expected.get(i, ()),
        )
        for i, text in enumerate(batch.texts)
    ]


def _by_text(scores: np.ndarray, valid: np.ndarray) -> list[np.ndarray]:
    """Of scores (examples, sites, tokens) those of each text, (sites, tokens), without padding. Each is a
    copy, so that a record does not hold the memory of its batch."""
    counts = valid.sum(1)
    if (valid == (np.arange(valid.shape[1]) < counts[:, None])).all():  # all padding is on the right
        return [row[:, :count].copy() for row, count in zip(scores, counts.tolist(), strict=True)]
    return [row[:, here] for row, here in zip(scores, valid, strict=True)]


def finite_scores(method: Method, scores: Tensor) -> np.ndarray:
    """Scores as float32 numbers, or an OutputError."""
    values = scores.detach().float().cpu().numpy()
    if not np.isfinite(values).all():
        raise OutputError(f"{method.name} gave scores that are not finite; run the model in float32")
    return values


def shown_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as records show them."""
    return {name: _plain(value) for name, value in settings.items() if value is not None}


def _plain(value: Any) -> Any:
    """A setting as it can be stored: numbers, strings, and lists and dicts of them as they are, the rest by
    type."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__
