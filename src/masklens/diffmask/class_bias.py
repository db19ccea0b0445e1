"""Classes of which a lens keeps much less than of others.

The deeper sites of a lens have read what the model will say, and its masks may keep next to nothing of the
texts of one class. That can be right: to say that something is absent needs no word. But what replaces a
token was learned beside the gates and can come to say, or to lean towards, any class, and then the masks tell
the prediction instead of explaining it. Lenses that differ by their seed then favour different classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..records.layers import site_name
from ..tasks.classification import Classification, MultiLabel, Regression
from .judging import masked_outputs
from .networks import THRESHOLD, Probe
from .texts import FrozenTexts

FEW = 10
"""texts of a class from which on it is judged"""
GAP = 0.2
"""how much less has to be kept of a class's texts for it to be told"""


class ClassBias(NamedTuple):
    """At one site: a class, the share kept of the texts of which the model says so and of the others, and
    what it says of most texts when everything is dropped."""

    site: int
    label: str
    kept: float
    others: float
    emptied: str

    def __str__(self) -> str:
        same = self.emptied == self.label
        return (
            f"{site_name(self.site)}: {self.kept:.0%} is kept of texts of which the model says "
            f"{self.label!r}, {self.others:.0%} of the others; with everything dropped it says "
            f"{'so too' if same else repr(self.emptied)}"
        )


@torch.no_grad()
def class_biases(probe: Probe, texts: FrozenTexts) -> list[ClassBias]:
    """The sites where less is kept of the texts of some class, by more than GAP, with the class of which it
    is most so; none for tasks that do not choose one class."""
    task = texts.subject.task
    if not isinstance(task, Classification) or isinstance(task, MultiLabel | Regression):
        return []
    chunks = [_of_chunk(probe, texts, rows) for rows in texts.chunks()]
    said, emptied, kept = (torch.cat(columns, dim=-1) for columns in zip(*chunks, strict=True))
    every = [(label, said == k) for k, label in enumerate(task.labels)]
    classes = [(label, of) for label, of in every if FEW <= int(of.sum()) <= len(said) - FEW]
    found = []
    for row, default, share in zip(probe.rows, emptied.mode(-1).values, kept, strict=True):
        usual = task.labels[int(default)]
        each = [
            ClassBias(row.site, label, float(share[of].mean()), float(share[~of].mean()), usual)
            for label, of in classes
        ]
        found += sorted(each, key=lambda one: one.kept - one.others)[:1]
    return [one for one in found if one.others - one.kept > GAP]


def _of_chunk(probe: Probe, texts: FrozenTexts, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions (texts,), those for emptied texts (probe rows, texts), shares kept (probe rows, texts)."""
    task, drawn = texts.subject.task, texts.draw(rows)
    states, valid = drawn.states(), drawn.batch.valid
    keeps = (probe.keep(states) > THRESHOLD) & valid
    nothing = {row: torch.zeros_like(valid) for row in range(len(keeps))}
    outputs = masked_outputs(probe, texts, drawn, nothing)
    emptied = torch.stack([task.predict(output, drawn.batch) for output in outputs])
    return task.predict(drawn.output, drawn.batch), emptied, keeps.sum(-1) / valid.sum(-1)
