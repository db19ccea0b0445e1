"""What masks can do that are given the model's answer, and how well a gate can be taught to find it.

    python -m benchmarks.answer_masks MODEL_DIR DATA_DIR LENS_DIR [QUESTIONS]

On training questions of SQuAD of at most 150 words; what is dropped is replaced by the lens's baseline. One
batch in seven is judged; on the others gate networks of the deepest site are taught, as classifiers of
tokens, to keep the answer: one that sees each token alone, as published, and one that compares them. Prints
the share masked, the divergence and the share of spans kept of each mask.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from masklens import DiffMask, Subject
from masklens.encoding import Batch
from masklens.diffmask.objective import FrozenTexts, edited_run
from masklens.diffmask.networks import COMPARED, GateNetwork
from masklens.reproduce.questions import read_questions, shuffled, that_fit
from masklens.subject import Run
from masklens.token_tasks import in_context

LONGEST, WORDS, ROUNDS = 384, 150, 8


def logits_of(gate: GateNetwork, batch: Batch, run: Run) -> Tensor:
    """(examples, tokens), of a network with one member."""
    return gate(*(state[None] for state in run.states.values()), valid=batch.valid[None])[0]


def taught(lessons: Sequence[tuple[Batch, Run, Tensor]], compared: int) -> GateNetwork:
    """A gate network that tells the answer's tokens."""
    torch.manual_seed(0)
    each = [torch.cat([state[b.valid] for state in run.states.values()], -1) for b, run, _ in lessons]
    read = torch.cat(each)  # (tokens, width)
    gate = GateNetwork(read.shape[1], read.shape[1] // 8, compared=compared)
    gate.mean.copy_(read.mean(0))
    gate.scale.copy_(read.std(0).clamp(min=1e-3))
    optimizer = torch.optim.RMSprop(gate.parameters(), lr=1e-3)
    for _ in range(ROUNDS):
        for i in torch.randperm(len(lessons)).tolist():
            batch, run, answer = lessons[i]
            logits = logits_of(gate, batch, run)[batch.valid]
            loss = F.binary_cross_entropy_with_logits(logits, answer[batch.valid].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return gate


def masks_of(batch: Batch, run: Run, answer: Tensor, gates: Mapping[str, GateNetwork]) -> dict[str, Tensor]:
    """Masks (examples, tokens) bool, by what they keep."""
    question = ~in_context(batch) & batch.valid
    return {
        "answer": answer,
        "its first and last token": answer & ~(answer.roll(1, 1) & answer.roll(-1, 1)),
        "question and answer": question | answer,
    } | {
        f"what the gate that {sees} finds": (logits_of(gate, batch, run) > 0) & batch.valid
        for sees, gate in gates.items()
    }


def judge(lens: DiffMask, batch: Batch, run: Run, answer: Tensor, keep: Tensor) -> Tensor:
    """Sums over the batch: share kept, divergence, spans kept, share of the answers' tokens kept."""
    subject, site = lens.subject, lens.sites[0]
    baseline = lens.probe.baseline(len(lens.sites) - 1)
    output = edited_run(subject, batch, site, run.states[site], keep.float(), baseline)
    sums = (
        (keep & batch.valid).sum() / batch.valid.sum() * len(batch),
        subject.task.divergence(run.output, output).sum(),
        subject.task.agrees(run.output, output, batch).sum(),
        (keep & answer).sum() / answer.sum() * len(batch),
    )
    return torch.stack([value.float() for value in sums])


@torch.no_grad()
def main(model: Path, data: Path, folder: Path, count: int = 700) -> None:
    subject = Subject.from_pretrained(model, truncate=True, max_length=LONGEST)
    lens = DiffMask.from_pretrained(folder, subject)
    questions = that_fit(subject, shuffled(read_questions(data, "train"), 0)[: 2 * count], LONGEST)
    pairs = [q.pair for q in questions if len(" ".join(q.pair).split()) < WORDS][:count]
    texts = FrozenTexts(subject, pairs, (lens.sites[0], lens.sites[-1]), 0)
    judged, lessons = [], []
    for number, rows in enumerate(texts.chunks(16)):
        batch, run = texts.draw(rows)
        answer = subject.task.pointed(run.output, batch)[..., 0]
        (lessons if number % 7 else judged).append((batch, run, answer))
    with torch.enable_grad():
        gates = {"sees single tokens": taught(lessons, 0), "compares them": taught(lessons, COMPARED)}
    total: dict[str, Tensor] = {}
    for batch, run, answer in judged:
        for name, keep in masks_of(batch, run, answer, gates).items():
            total[name] = total.get(name, torch.zeros(4)) + judge(lens, batch, run, answer, keep)
    for name, sums in total.items():
        kept, divergence, spans, found = (sums / sum(len(batch) for batch, _, _ in judged)).tolist()
        print(
            f"{name}: {1 - kept:.1%} masked, divergence {divergence:.2f}, {spans:.1%} of spans kept, "
            f"{found:.1%} of the answers' tokens kept"
        )


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:4]]
    main(*paths, *map(int, sys.argv[4:]))
