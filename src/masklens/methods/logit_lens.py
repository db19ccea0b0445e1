"""What each layer would predict: the model's own head applied to the state of every layer (the logit lens).

    for one in layer_predictions(subject, ["The capital of France is"]):
        print(one)

The state of a layer is put in place of the last block's output, and the model does the rest: the final norm
and the head of a language model, the pooler and the classifier of an encoder. An encoder-decoder's decoder
reads the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attribution import Text
from ..errors import MethodError
from ..model.batch import Batch
from ..model.memory import in_halves
from ..model.subject import Run, Subject, as_subject
from ..records.layers import site_name
from ..tasks.base import Task
from ..tasks.classification import Classification, Regression
from ..tasks.lm import LanguageModel

CLASSIFIER_NOTE = (
    "Read by the model's own head, such as a pooler and a classifier, which was trained for the last layer "
    "only."
)


@dataclass(frozen=True)
class LayerPredictions:
    """The head's prediction from the state of each layer, for one text. The last one is the model's own."""

    text: Text
    sites: tuple[int, ...]
    predictions: tuple[str, ...]
    """the prediction at each site"""
    probabilities: tuple[float, ...]
    """the probability of the prediction at each site"""
    answer: str
    answer_probabilities: tuple[float, ...]
    """the probability of the model's own answer at each site"""
    settled: int
    """the first site from which on the answer stays on top"""
    note: str = ""
    """for a classifier, what to know about its head"""

    def __str__(self) -> str:
        rows = zip(self.sites, self.predictions, self.probabilities, self.answer_probabilities, strict=True)
        lines = [f"{site_name(s):>10}  {p:6.1%}  {a:6.1%}  {name!r}" for s, name, p, a in rows]
        return "\n".join([f"{'layer':>10}     top  answer  {self.answer!r}, {self.since}", *lines])

    @property
    def since(self) -> str:
        return f"on top from {site_name(self.settled)}"


def layer_predictions(
    subject: Any, texts: Sequence[Text], sites: Sequence[int] | None = None, batch_size: int = 32
) -> list[LayerPredictions]:
    """The prediction of the model's own head at each site.

    By default these are all sites whose states are as wide as those of the last block. The last site is
    always included: its prediction is the model's own output.
    """
    subject = as_subject(subject)
    if not has_layer_predictions(subject.task):
        raise MethodError(
            f"{type(subject.task).__name__} predicts neither a class nor a token, so its layers have no "
            f"prediction; use a language model or a classifier"
        )
    chosen = subject.check_sites(subject.sites if sites is None else sites)
    batches = [list(range(i, min(i + batch_size, len(texts)))) for i in range(0, len(texts), batch_size)]

    def work(rows: list[int]) -> list[LayerPredictions]:
        return _read(subject, [texts[i] for i in rows], chosen)

    return [one for rows in batches for _, made in in_halves(work, rows) for one in made]


def has_layer_predictions(task: Task) -> bool:
    """Whether the task has a prediction that can be read at each layer: a class or a token, not a number."""
    return isinstance(task, LanguageModel | Classification) and not isinstance(task, Regression)


@torch.no_grad()
def _read(subject: Subject, texts: Sequence[Text], chosen: Sequence[int]) -> list[LayerPredictions]:
    batch = subject.encode(texts)
    task, whole = subject.task, _states(subject, batch, chosen)
    answer = task.predict(whole.output, batch)
    # One output at a time: with a large vocabulary those of all sites would not fit into memory.
    found = {site: _reading(task, batch, output, answer) for site, output in _outputs(subject, batch, whole)}
    note = CLASSIFIER_NOTE if isinstance(task, Classification) else ""
    return [_record(text, i, found, note) for i, text in enumerate(batch.texts)]


@torch.no_grad()
def layer_outputs(subject: Subject, batch: Batch, chosen: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The chosen sites and the last one, each with the output if its state replaced the last block's."""
    yield from _outputs(subject, batch, _states(subject, batch, chosen))


def _states(subject: Subject, batch: Batch, chosen: Sequence[int]) -> Run:
    """The model's output, and its states at the chosen sites and the last one."""
    return subject.states(batch, sorted({*chosen, max(subject.sites)}))


def _outputs(subject: Subject, batch: Batch, whole: Run) -> Iterator[tuple[int, Tensor]]:
    last = max(whole.states)
    for site, state in whole.states.items():
        if site == last:
            yield site, whole.output
        elif state.shape == whole.states[last].shape:
            yield site, subject.run(batch, replace={last: state}).output


class Reading(NamedTuple):
    """What the head says at one site, for each text of a batch."""

    predictions: list[str]
    probabilities: list[float]
    answer_probabilities: list[float]
    is_answer: list[bool]


def _reading(task: Task, batch: Batch, output: Tensor, answer: Tensor) -> Reading:
    top = task.predict(output, batch)
    return Reading(
        task.describe(top, batch),
        task.log_probability(output, top).exp().tolist(),
        task.log_probability(output, answer).exp().tolist(),
        (top == answer).reshape(len(batch), -1).all(1).tolist(),
    )


def _record(text: Text, i: int, found: Mapping[int, Reading], note: str) -> LayerPredictions:
    sites, read = tuple(found), list(found.values())
    return LayerPredictions(
        text,
        sites,
        tuple(one.predictions[i] for one in read),
        tuple(one.probabilities[i] for one in read),
        read[-1].predictions[i],
        tuple(one.answer_probabilities[i] for one in read),
        settled_at(sites, [one.is_answer[i] for one in read]),
        note,
    )


def settled_at(sites: Sequence[int], right: Sequence[bool]) -> int:
    """The first site from which on all entries of `right` are true. The last entry is always true."""
    wrong = [k for k, one in enumerate(right) if not one]
    return sites[wrong[-1] + 1] if wrong else sites[0]
