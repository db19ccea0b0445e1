"""What a model says with everything dropped, and whether a lens makes use of it.

The deeper sites of a lens have read what the model will say. Where the baseline alone makes the model say one
class, masks may keep next to nothing of the texts of that class. That can be right: to say that something is
absent needs no word. But a baseline that was learned beside the gates can come to say any class, and then the
masks tell the prediction instead of explaining it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..objectives import FrozenTexts, masked_outputs
from ..probes import Probe
from ..tasks import Classification, MultiLabel

FEW = 10
"""texts of a class from which on it is judged"""
GAP = 0.2
"""how much less has to be kept of the default's texts for it to be told"""


class Default(NamedTuple):
    """At one site: what the model says of most texts when everything is dropped, and the share kept of texts
    of which it says so anyway, and of the others."""

    site: int
    label: str
    kept: float
    others: float

    def __str__(self) -> str:
        return (
            f"site {self.site}: with everything dropped the model says {self.label!r}; {self.kept:.0%} is "
            f"kept of texts of which it says so anyway, {self.others:.0%} of the others"
        )


@torch.no_grad()
def defaults(probe: Probe, texts: FrozenTexts) -> list[Default]:
    """The sites where less is kept of the texts of the default class, by more than GAP; none for tasks that
    do not choose one class."""
    task = texts.subject.task
    if not isinstance(task, Classification) or isinstance(task, MultiLabel):
        return []
    chunks = [_of_chunk(probe, texts, rows) for rows in texts.chunks()]
    said, emptied, kept = (torch.cat(columns, dim=-1) for columns in zip(*chunks, strict=True))
    found = []
    for i, row in enumerate(probe.rows):
        label = int(emptied[i].mode().values)
        default = said == label
        if min(int(default.sum()), int((~default).sum())) >= FEW:
            shares = float(kept[i, default].mean()), float(kept[i, ~default].mean())
            found.append(Default(row.site, task.labels[label], *shares))
    return [one for one in found if one.others - one.kept > GAP]


def _of_chunk(probe: Probe, texts: FrozenTexts, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions (texts,), those for emptied texts (probe rows, texts), shares kept (probe rows, texts)."""
    subject = texts.subject
    batch, run = texts.draw(rows)
    keeps = (probe.log_keep(run.states, batch.valid).exp() > 0.5).float() * batch.valid
    outputs = masked_outputs(subject, probe, batch, run, torch.zeros_like(keeps), range(len(keeps)))
    emptied = torch.stack([subject.task.predict(output, batch) for output in outputs])
    return subject.task.predict(run.output, batch), emptied, keeps.sum(-1) / batch.valid.sum(-1)
