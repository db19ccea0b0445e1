"""`explain`: one call for every method, over any number of texts, one batch in memory at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ..attribution import Attribution, Explanations, Text
from ..errors import MethodError, OutputError, TextError
from ..model.memory import in_halves
from ..model.subject import Subject, as_subject
from ..progress import showing, track
from ..tasks.base import per_text
from .registry import Method, Request, find


def explain(
    subject: Any,
    texts: Text | Iterable[Text],
    method: str = "integrated_gradients",
    target: Any = None,
    batch_size: int = 32,
    sites: Sequence[int] | str | None = None,
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
        method: a name from `masklens.methods()`.
        target: a class id or name (one, or a list with one per text); by default the predicted one.
        sites: site numbers, "all", or None for the method's own choice.
        baselines: what stands for an absent token, for the methods that need it.
        windows: for question answering, by how many tokens windows over a context that is too long for the
            model overlap, such as 128. The window with the best answer is explained; the record is of that
            window, and its settings say where the window and the answer begin in the whole context.
        options: the method's own options; an unknown one is an error.
    """
    subject, chosen = as_subject(subject), find(method)
    chosen.check_options(list(options))
    texts, start = _as_list(texts), time.perf_counter()
    where = chosen_sites(subject, chosen, sites, options.get("lens"))
    targets = per_text(target, len(texts))
    texts, notes = _windowed(subject, texts, targets, windows, batch_size)
    order = sorted(range(len(texts)), key=lambda i: _length(texts[i]))
    results: list[Attribution | None] = [None] * len(texts)
    settings = {"seed": seed, "baselines": baselines, **options}
    with showing(show_progress):
        for rows in track(_batches(order, batch_size), method):
            made = _explain_rows(subject, chosen, texts, targets, rows, where, settings)
            for i, attribution in zip(rows, made, strict=True):
                results[i] = replace(attribution, settings={**attribution.settings, **notes[i]})
    return Explanations((a for a in results if a is not None), time.perf_counter() - start)


def _as_list(texts: Text | Iterable[Text]) -> list[Text]:
    if isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and isinstance(texts[0], str)):
        return [texts]  # type: ignore[list-item]
    texts = list(texts)
    for i, text in enumerate(texts):
        pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(t, str) for t in text)
        if not isinstance(text, str) and not pair:
            hint = ". Of a data set, give a column: dataset['text']" if isinstance(text, dict) else ""
            raise TextError(f"text {i} is {text!r:.80}; a text is a string or a pair of strings{hint}")
    return [text if isinstance(text, str) else (text[0], text[1]) for text in texts]


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
    subject: Subject, method: Method, sites: Sequence[int] | str | None, lens: Any
) -> tuple[int, ...]:
    """The sites asked for; by default those of the lens, or the method's own."""
    if sites is None:
        return method.default_sites(subject) if lens is None else lens.sites
    return subject.sites if sites == "all" else subject.check_sites(int(site) for site in sites)


def _batches(order: Sequence[int], size: int) -> list[list[int]]:
    if size < 1:
        raise MethodError(f"batch_size is {size}; it must be at least 1")
    return [list(order[start : start + size]) for start in range(0, len(order), size)]


def _explain_rows(
    subject: Subject,
    method: Method,
    texts: Sequence[Text],
    targets: Sequence[Any],
    rows: list[int],
    sites: tuple[int, ...],
    settings: dict[str, Any],
) -> list[Attribution]:
    """Explain some of the texts as one batch, or in halves where memory does not suffice."""

    def work(some: list[int]) -> list[Attribution]:
        wanted = [targets[i] for i in some]
        batch = subject.encode([texts[i] for i in some], wanted)
        request = Request(subject, batch, sites, wanted, settings["seed"], settings["baselines"])
        scores = run_method(request, method, settings)
        return records(request, method, scores, {**method.options, **settings})

    return [attribution for _, made in in_halves(work, rows) for attribution in made]


def run_method(request: Request, method: Method, settings: dict[str, Any]) -> Tensor:
    """A method's scores for one batch: (examples, sites, tokens)."""
    options = {name: value for name, value in settings.items() if name not in ("seed", "baselines")}
    with request.subject.frozen():
        return method.function(request, **options)


def records(request: Request, method: Method, scores: Tensor, settings: dict[str, Any]) -> list[Attribution]:
    """Attributions from a batch's scores (examples, sites, tokens)."""
    batch, task = request.batch, request.subject.task
    values = finite_scores(method, scores)
    predictions = task.describe(task.predict(request.reference, batch), batch)
    targets = task.describe(request.target, batch)
    shown = shown_settings(settings)
    out = []
    for i in range(len(batch)):
        where = batch.valid[i].cpu().numpy()
        out.append(
            Attribution(
                text=batch.texts[i],
                tokens=batch.tokens[i],
                offsets=batch.offsets[i],
                special=tuple(batch.special[i].cpu().numpy()[where].tolist()),
                segments=tuple(batch.segments[i].cpu().numpy()[where].tolist()),
                sites=request.sites,
                scores=values[i][:, where],
                prediction=predictions[i],
                target=targets[i],
                method=method.name,
                settings=shown
                | request.notes.get(i, {})
                | ({"truncated": True} if batch.truncated[i] else {}),
                merge=method.merge,
                parts=() if isinstance(batch.texts[i], str) else task.parts,
            )
        )
    return out


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
    """A setting as it can be stored: numbers and strings as they are, the rest by type."""
    return value if isinstance(value, bool | int | float | str) else type(value).__name__
