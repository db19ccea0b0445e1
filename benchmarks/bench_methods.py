"""What methods cost, as a multiple of one no-grad forward pass over the same batches, and beside captum.

All ways of one table are run in turn, several rounds; a ratio is the median of the rounds' ratios. Times are
CPU seconds of this process, so that other work on the machine does not count. captum explains one text at a
time, without padding, with the parameters frozen, at several batch sizes; the best one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.reference import Missing, checkpoint, sst2_dev
from benchmarks.timing import Way, in_turn, ratio, table
from masklens import Subject, explain
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Probe, rows_for
from masklens.diffmask.trainer import Settings
from masklens.methods.registry import Request, find
from masklens.model.batch import Batch
from masklens.model.lm_head import find_head

ROUNDS, BATCH = 3, 32
SENTENCES, FEW = 64, 8


def main() -> str:
    """The two tables."""
    try:
        folder, head, texts = checkpoint("mpnet-sst2"), checkpoint("mpnet-mlm"), sst2_dev()[0]
    except Missing as reason:
        return f"not run: {reason}"
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    subject = Subject.from_pretrained(folder)
    return "\n\n".join([costs(subject, texts[:SENTENCES], str(head)), against_captum(subject, texts[:FEW])])


def costs(subject: Subject, texts: Sequence[str], head: str) -> str:
    """Methods against one forward pass over the same batches, sorted by length as `explain` sorts them."""
    ordered = sorted(texts, key=len)
    batches = [subject.encode(ordered[i : i + BATCH]) for i in range(0, len(ordered), BATCH)]
    blocks, decoded = tuple(subject.blocks), {"lm_head": head}
    ways: dict[str, Way] = {
        "forward": lambda: forward(subject, batches),
        "gradient at site 0": through(subject, batches, "gradient", subject.sites[:1]),
        "gradcam at all sites (at most 2.3)": through(subject, batches, "gradcam", subject.sites),
        "decoded_gradcam at block 7 (at most 2.6)": through(
            subject, batches, "decoded_gradcam", (8,), **decoded
        ),
        "decoded_gradcam at block 1 (at most 2.6)": through(
            subject, batches, "decoded_gradcam", (2,), **decoded
        ),
        "decoded_gradcam at all blocks (at most 6)": through(
            subject, batches, "decoded_gradcam", blocks, **decoded
        ),
        "diffmask with a lens, all sites (at most 1.2)": through(
            subject, batches, "diffmask", subject.sites, lens=untrained_lens(subject, batches[0])
        ),
        "attention at all blocks": through(subject, batches, "attention", blocks),
    }
    find_head(subject, head)  # loaded once, before the clock starts
    times = in_turn(ways, ROUNDS)
    about = f"{len(texts)} sentences in batches of {BATCH}, one thread, {ROUNDS} rounds"
    rows = [[n, f"{median(times[n]):.2f}", f"{ratio(times, n, 'forward'):.2f}"] for n in ways]
    return f"{about}\n\n{table(['method', 'CPU seconds', 'forward passes'], rows)}"


def untrained_lens(subject: Subject, batch: Batch) -> DiffMask:
    """A lens over inputs: what it costs does not depend on its weights."""
    widths = {site: state.shape[-1] for site, state in subject.states(batch.take([0])).states.items()}
    probe = Probe(rows_for("inputs", subject.sites), widths)
    return DiffMask(subject, probe.requires_grad_(False), "inputs", Settings())


@torch.no_grad()
def forward(subject: Subject, batches: Sequence[Batch]) -> None:
    for batch in batches:
        subject.module(**batch.inputs)


def through(
    subject: Subject, batches: Sequence[Batch], name: str, sites: tuple[int, ...], **options: Any
) -> Way:
    """A method over the encoded batches, its prediction included."""

    def run() -> None:
        with subject.frozen():
            for batch in batches:
                request = Request(subject, batch, sites)
                find(name).function(request, **options)
                request.reference  # noqa: B018

    return run


def against_captum(subject: Subject, texts: Sequence[str]) -> str:
    """IG with 50 steps and occlusion of single tokens, by us and by captum at several batch sizes."""
    cases: dict[str, tuple[dict[str, Any], Callable[[Subject, Sequence[str], int], None]]] = {
        "integrated_gradients": ({"n_steps": 50}, captum_integrated),
        "occlusion": ({}, captum_occlusion),
    }
    rows = [
        beside_captum(name, lambda n=name, o=options: explain(subject, list(texts), n, **o),  # type: ignore[misc]
                      lambda size, t=theirs: t(subject, texts, size))  # type: ignore[misc]
        for name, (options, theirs) in cases.items()
    ]  # fmt: skip
    heads = ["method", "masklens (s)", "captum at its best (s)", "its batch size", "ratio (at most 1)"]
    return f"{len(texts)} sentences, one thread, {ROUNDS} rounds\n\n{table(heads, rows)}"


def beside_captum(name: str, ours: Way, captum: Callable[[int], object]) -> list[str]:
    """captum runs at several batch sizes; its best one counts."""
    sizes = {f"captum {size}": size for size in (25, 50)}
    ways: dict[str, Way] = {label: lambda s=size: captum(s) for label, size in sizes.items()}  # type: ignore[misc]
    times = in_turn({"ours": ours} | ways, ROUNDS)
    best = min(sizes, key=lambda label: median(times[label]))
    seconds = [f"{median(times[label]):.2f}" for label in ("ours", best)]
    return [name, *seconds, str(sizes[best]), f"{ratio(times, 'ours', best):.2f}"]


def captum_integrated(subject: Subject, texts: Sequence[str], size: int) -> None:
    from captum.attr import IntegratedGradients

    model = subject.module
    with subject.frozen():
        for text in texts:
            inputs = subject.encode([text]).inputs
            states = model.get_input_embeddings()(inputs["input_ids"]).detach()
            logits = reader(model, inputs, "inputs_embeds")
            target = int(no_grad(logits, states).argmax())
            IntegratedGradients(logits).attribute(states, target=target, n_steps=50, internal_batch_size=size)


def captum_occlusion(subject: Subject, texts: Sequence[str], size: int) -> None:
    from captum.attr import Occlusion

    with subject.frozen(), torch.no_grad():
        for text in texts:
            inputs = subject.encode([text]).inputs
            logits = reader(subject.module, inputs, "input_ids")
            target = int(logits(inputs["input_ids"]).argmax())
            Occlusion(logits).attribute(
                inputs["input_ids"],
                (1,),
                baselines=subject.tokenizer.mask_token_id,
                target=target,
                perturbations_per_eval=size,
            )


def reader(model: Any, inputs: dict[str, torch.Tensor], name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits as a function of one input, of any number of rows."""
    attention = inputs["attention_mask"]
    return lambda rows: model(**{name: rows, "attention_mask": attention.expand(len(rows), -1)}).logits


@torch.no_grad()
def no_grad(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    return function(value)
