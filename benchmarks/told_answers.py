"""Do masks that know the answer force it? What a model says where its lens is told another span instead.

    python -m benchmarks.told_answers MODEL_DIR DATA_DIR LENS_DIR [QUESTIONS]

For a lens fitted with pointed=True, on random questions of SQuAD's dev set: how often the model points at the
span that the lens was told, if that is its own answer, and if it is another span of the passage, of the same
length, drawn at random; with the lens's masks, and with the span alone kept. If masks forced answers, both
would be alike. About 2 seconds a question on two cores.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from masklens import DiffMask, Subject
from masklens.encoding import Batch
from masklens.diffmask.objective import FrozenTexts, edited_run
from masklens.reproduce.questions import read_questions, shuffled, that_fit
from masklens.subject import Run
from masklens.tasks import POINTED
from masklens.token_tasks import in_context, inside

LONGEST, ROWS = 384, 8


def other_spans(batch: Batch, spans: Tensor, generator: torch.Generator) -> Tensor:
    """For each answer a span of the passage, as long, that shares no token with it; where there is none, the
    answer itself: (examples, 2)."""
    found, passage = spans.clone(), in_context(batch)
    for i, (start, end) in enumerate(spans.tolist()):
        length = end - start + 1
        free = [
            place
            for place in range(batch.shape[1] - length + 1)
            if passage[i, place : place + length].all() and (place + length <= start or place > end)
        ]
        if free:
            place = free[int(torch.randint(len(free), (1,), generator=generator))]
            found[i] = torch.tensor([place, place + length - 1])
    return found


def points_at(lens: DiffMask, batch: Batch, run: Run, spans: Tensor) -> dict[str, Tensor]:
    """Whether the model points at these spans, (examples,) bool, under the masks of a lens that is told them,
    and with them alone."""
    told = inside(spans, batch.shape[1])
    pointed = torch.stack([told.to(run.output), run.states[POINTED][..., 1]], -1)
    masks = {
        "masks": lens.keep({**run.states, POINTED: pointed}, batch.valid)[-1] > 0.5,
        "span alone": told,
    }
    baseline, site = lens.probe.baseline(len(lens.sites) - 1), lens.sites[0]
    return {
        name: (
            lens.subject.task.predict(
                edited_run(lens.subject, batch, site, run.states[site], keep.float(), baseline), batch
            )
            == spans
        ).all(1)
        for name, keep in masks.items()
    }


@torch.no_grad()
def main(model: Path, data: Path, folder: Path, count: int = 240) -> None:
    subject = Subject.from_pretrained(model, truncate=True, max_length=LONGEST)
    lens = DiffMask.from_pretrained(folder, subject)
    questions = that_fit(subject, shuffled(read_questions(data, "dev"), 0)[: 2 * count], LONGEST)[:count]
    texts = FrozenTexts(subject, [q.pair for q in questions], lens.probe.reads, 0)
    generator, total = torch.Generator().manual_seed(0), Counter[tuple[str, str]]()
    for rows in texts.chunks(ROWS):
        batch, run = texts.draw(rows)
        answers = subject.task.predict(run.output, batch)
        told = {"its answer": answers, "another span": other_spans(batch, answers, generator)}
        for what, spans in told.items():
            for name, same in points_at(lens, batch, run, spans).items():
                total[what, name] += int(same.sum())
    for (what, name), same in total.items():
        print(f"told {what}, {name}: {same / len(texts):.1%} of {len(texts)} questions answered with it")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]), *map(int, sys.argv[4:]))
