"""What each layer would predict: the model's own head applied to the state of every layer (the logit lens).

    for one in layer_predictions(subject, ["The capital of France is"]):
        print(one)

The state of a layer is put in place of the last block's output, and the model does the rest: the final norm
and the head of a language model, the pooler and the classifier of an encoder. An encoder-decoder's decoder
reads the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attribution import Text
from ..errors import MethodError
from ..model.batch import Batch
from ..model.memory import in_halves
from ..model.subject import Subject, as_subject
from ..records.layers import site_name
from ..tasks.base import Task
from ..tasks.classification import Classification, Regression
from ..tasks.lm import LanguageModel


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
    outputs = dict(layer_outputs(subject, batch, chosen))
    return _records(subject, batch, list(outputs), list(outputs.values()))


@torch.no_grad()
def layer_outputs(subject: Subject, batch: Batch, chosen: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The chosen sites and the last one, each with the output if its state replaced the last block's."""
    last = max(subject.sites)
    states = subject.states(batch, sorted({*chosen, last})).states
    for site, state in states.items():
        if state.shape == states[last].shape:
            yield site, subject.run(batch, replace={last: state}).output


def _records(
    subject: Subject, batch: Batch, sites: Sequence[int], outputs: Sequence[Tensor]
) -> list[LayerPredictions]:
    task = subject.task
    tops = [task.predict(output, batch) for output in outputs]
    names = [task.describe(top, batch) for top in tops]
    own = [task.log_probability(o, top).exp().tolist() for o, top in zip(outputs, tops, strict=True)]
    answer = [task.log_probability(output, tops[-1]).exp().tolist() for output in outputs]
    same = [(top == tops[-1]).reshape(len(batch), -1).all(1).tolist() for top in tops]  # sites x examples
    return [
        LayerPredictions(
            text,
            tuple(sites),
            tuple(column[i] for column in names),
            tuple(column[i] for column in own),
            names[-1][i],
            tuple(column[i] for column in answer),
            settled_at(sites, [column[i] for column in same]),
        )
        for i, text in enumerate(batch.texts)
    ]


def settled_at(sites: Sequence[int], right: Sequence[bool]) -> int:
    """The first site from which on all entries of `right` are true. The last entry is always true."""
    wrong = [k for k, one in enumerate(right) if not one]
    return sites[wrong[-1] + 1] if wrong else sites[0]
