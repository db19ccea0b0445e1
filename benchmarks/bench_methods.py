"""What methods cost, as a multiple of one no-grad forward pass over the same batches, and beside captum.

All ways of one table are run in turn, several rounds; a ratio is the median of the rounds' ratios. Times are
CPU seconds of this process, so that other work on the machine does not count. captum explains one text at a
time, without padding, with the parameters frozen, at several batch sizes; the best one counts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from masklens import Subject, explain
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import Probe, rows_for
from masklens.diffmask.trainer import Settings
from masklens.encoding import Batch
from masklens.methods import Request, find
from masklens.methods.lm_head import find_head

from .reference import Missing, checkpoint, sst2_dev

ROUNDS, BATCH = 3, 32
SENTENCES, FEW = 64, 8

Way = Callable[[], object]


def main() -> str:
    """The three tables."""
    try:
        folder, head, texts = checkpoint("mpnet-sst2"), checkpoint("mpnet-mlm"), sst2_dev()[0]
    except Missing as reason:
        return f"not run: {reason}"
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    subject = Subject.from_pretrained(folder)
    parts = [
        costs(subject, texts[:SENTENCES], str(head)),
        against_captum(subject, texts[:FEW]),
        erasure_with_shared_prefixes(),
    ]
    return "\n\n".join(parts)


def in_turn(ways: dict[str, Way], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """The CPU seconds that each way took in each round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append(time.process_time() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of one way's time by another's."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


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
    times = in_turn(ways)
    lines = [
        f"{len(texts)} sentences in batches of {BATCH}, {torch.get_num_threads()} threads, {ROUNDS} rounds",
        "",
        "| method | CPU seconds | forward passes |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {median(times[name]):.2f} | {ratio(times, name, 'forward'):.2f} |" for name in ways
    ]
    return "\n".join(lines)


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
    lines = [
        f"{len(texts)} sentences, {torch.get_num_threads()} threads, {ROUNDS} rounds",
        "",
        "| method | masklens (s) | captum at its best (s) | its batch size | ratio (at most 1) |",
        "|---|---|---|---|---|",
    ]
    cases: dict[str, tuple[dict[str, Any], Callable[[Subject, Sequence[str], int], None]]] = {
        "integrated_gradients": ({"n_steps": 50}, captum_integrated),
        "occlusion": ({}, captum_occlusion),
    }
    for name, (options, theirs) in cases.items():
        sizes = {f"captum {size}": size for size in (25, 50)}
        ways: dict[str, Way] = {"ours": lambda n=name, o=options: explain(subject, list(texts), n, **o)}  # type: ignore[misc]
        ways |= {label: lambda s=size, t=theirs: t(subject, texts, s) for label, size in sizes.items()}  # type: ignore[misc]
        times = in_turn(ways)
        best = min(sizes, key=lambda label: median(times[label]))
        ours, captum = median(times["ours"]), median(times[best])
        lines.append(
            f"| {name} | {ours:.2f} | {captum:.2f} | {sizes[best]} | {ratio(times, 'ours', best):.2f} |"
        )
    return "\n".join(lines)


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


class Gru(torch.nn.Module):
    """Word embeddings, a GRU, a linear head on its last state."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.gru = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embed(ids))[1][-1])


def erasure_with_shared_prefixes(words: int = 20, kept: int = 6, width: int = 256) -> str:
    """Exact erasure of a GRU classifier, with shared prefixes and with every set read by itself."""
    from masklens.methods import erasure as module

    torch.manual_seed(0)
    request = gru_request(words, width)
    margin = margin_for(request, kept)
    search = find("erasure").function
    find_recurrence = module.find_recurrence

    def plain() -> None:
        module.find_recurrence = lambda *_: None  # type: ignore[assignment]
        try:
            search(request, criterion="divergence", margin=margin, internal_batch_size=256)
        finally:
            module.find_recurrence = find_recurrence

    times = in_turn(
        {"shared": lambda: search(request, criterion="divergence", margin=margin), "plain": plain}, rounds=1
    )
    return "\n".join(
        [
            f"exact erasure, {words} words of which {kept} are kept, GRU {width} wide",
            "",
            "| each set by itself, 256 at a time (s) | prefixes shared (s) | times faster (at least 5) |",
            "|---|---|---|",
            f"| {median(times['plain']):.2f} | {median(times['shared']):.2f} "
            f"| {ratio(times, 'plain', 'shared'):.1f} |",
        ]
    )


def gru_request(words: int, width: int) -> Request:
    from masklens.tap import Point
    from masklens.tasks import Classification

    net, ids = Gru(words, width).eval(), torch.arange(words)[None]
    names = tuple(f"w{i}" for i in range(words))
    batch = Batch(
        inputs={"ids": ids},
        valid=torch.ones_like(ids).bool(),
        special=torch.zeros_like(ids).bool(),
        segments=torch.zeros_like(ids),
        tokens=(names,),
        offsets=(((0, 0),) * words,),
        texts=(" ".join(names),),
        truncated=(False,),
    )
    subject = Subject.from_module(net, [Point(net.embed)], Classification("abc"), lambda _: batch)
    return Request(subject, batch, (0,))


def margin_for(request: Request, kept: int) -> float:
    """A margin under which so many words have to be kept, found by bisection."""
    low, high = -8.0, 1.0  # powers of 10
    for _ in range(30):
        middle = (low + high) / 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            find("erasure").function(request, criterion="divergence", margin=10**middle, budget=100_000)
        size = request.notes[0].pop("size@0", kept + 1)
        if size == kept:
            return 10**middle
        low, high = (middle, high) if size > kept else (low, middle)
    raise RuntimeError(f"no margin keeps {kept} words")
