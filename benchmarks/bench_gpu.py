"""Texts a second on a GPU, tokenizer included, beside the bare model's forward pass in the same run.

    python -m benchmarks gpu

SST-2's development set, several times over. The bare model is timed at several batch sizes, of which the best
counts; methods choose their own. Wall-clock seconds: on a GPU the time goes into waiting, which CPU seconds
do not show. mpnet has a table of its own where its checkpoint is there.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.bench_corpus import any_lens, decoded, whole_run, write_texts
from benchmarks.reference import Missing, checkpoint, sst2_dev
from benchmarks.timing import table
from masklens import Subject, explain
from masklens.corpus import Job
from masklens.corpus.worker import Worker
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.trainer import fast_products

TEXTS, FEW = 8000, 400
"""texts, and how many of them for methods of many passes"""
BATCHES = (128, 256, 512, 1024)
ROUNDS, STEPS = 3, 50
CAPTUM = (200, 800, 3200, 12800)
"""rows of a batch that captum is tried with"""
FIT_BATCH, FIT_STEPS = 1024, 40

Work = Callable[[], object]


def main() -> str:
    if not torch.cuda.is_available():
        return "not run: there is no GPU that torch can use"
    try:
        texts = sst2_dev()[0]
        parts = list(reports((texts * (TEXTS // len(texts) + 1))[:TEXTS]))
    except Missing as reason:
        return f"not run: {reason}"
    return "\n\n".join(parts)


def reports(texts: Sequence[str], device: str = "cuda") -> Iterator[str]:
    model, head = checkpoint("minilm-sst2"), checkpoint("minilm-mlm")
    subject = Subject.from_pretrained(model, device=device)
    with tempfile.TemporaryDirectory() as name:
        lens = any_lens(subject, Path(name) / "lens")
        ways = methods(subject, texts, lens, str(head)) | corpora(model, head, texts, lens, Path(name))
        yield beside_forward("minilm-sst2", subject, texts, ways)
    yield beside_captum(subject, texts[:FEW])
    yield fitting(subject, texts)
    try:
        subject = Subject.from_pretrained(checkpoint("mpnet-sst2"), device=device)
    except Missing as reason:
        yield f"mpnet: not run: {reason}"
        return
    with tempfile.TemporaryDirectory() as name:
        lens = any_lens(subject, Path(name))
        yield beside_forward("mpnet-sst2", subject, texts, {"lens (0.85)": _way(subject, texts, lens)})


def beside_forward(name: str, subject: Subject, texts: Sequence[str], ways: dict[str, Work]) -> str:
    """Each way's texts a second, by the bare model's, and what it took of the GPU's memory."""
    bare = max(speed(lambda size=size: forward(subject, texts, size), len(texts)) for size in BATCHES)
    rows = [["bare forward pass", f"{bare:,.0f}", "1.00", peak()]]
    rows += [[way, *against(speed(work, len(texts)), bare), peak()] for way, work in ways.items()]
    said = f"{name}, {len(texts):,} texts, median of {ROUNDS}; in brackets the ratio that is good"
    return f"{said}\n\n{table(['way', 'texts a second', 'by bare', 'peak GB'], rows)}"


def _way(subject: Subject, texts: Sequence[str], lens: str) -> Work:
    fitted = DiffMask.from_pretrained(lens, subject)
    return lambda: explain(subject, texts, "diffmask", lens=fitted)


def methods(subject: Subject, texts: Sequence[str], lens: str, head: str) -> dict[str, Work]:
    def way(method: str, **options: Any) -> Work:
        return lambda: explain(subject, texts, method, **options)

    return {
        "lens (0.75)": _way(subject, texts, lens),
        "random (0.9)": way("random"),
        "grad_x_input (0.3)": way("grad_x_input"),
        "gradcam, all layers (0.3)": way("gradcam"),
        "decoded_gradcam, block 4 (0.25)": way("decoded_gradcam", lm_head=head, sites=[5]),
        "decoded_gradcam, all blocks (0.12)": way("decoded_gradcam", lm_head=head),
    }


def corpora(model: Path, head: Path, texts: Sequence[str], lens: str, folder: Path) -> dict[str, Work]:
    """`masklens corpus` from the file to the shards; the model is loaded before."""
    corpus = write_texts(folder / "texts.jsonl", list(texts))
    jobs = {
        "corpus, lens (0.6)": Job(str(model), corpus, "diffmask", lens=lens, verify=False),
        "corpus, lens, verified (0.25)": Job(str(model), corpus, "diffmask", lens=lens),
        "corpus, decoded_gradcam (0.2)": decoded(model, head, corpus, verify=False),
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        name: whole_run(Worker(job, device), folder / f"out{i}") for i, (name, job) in enumerate(jobs.items())
    }


def beside_captum(subject: Subject, texts: Sequence[str]) -> str:
    """Integrated gradients: how fast, and how far apart the scores are."""
    ordered = sorted(texts, key=len)

    def ours() -> list[np.ndarray]:
        return [a.scores[0] for a in explain(subject, ordered, "integrated_gradients", n_steps=STEPS)]

    def theirs(size: int) -> list[np.ndarray]:
        return list(captum(subject, ordered, size))

    sides = zip(ours(), theirs(CAPTUM[0]), strict=True)
    apart = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in sides)
    mine = speed(ours, len(texts))
    best = max(speed(lambda size=size: theirs(size), len(texts)) for size in CAPTUM)
    return (
        f"integrated gradients, {STEPS} steps, {len(texts)} texts: {mine:,.0f} texts a second, captum at its "
        f"best batch size {best:,.0f}: {mine / best:.2f} times (at least 1.2); scores differ by at most "
        f"{apart:.1e} of the largest of a text"
    )


def captum(subject: Subject, texts: Sequence[str], size: int) -> Iterator[np.ndarray]:
    """captum's integrated gradients at the word embeddings, as many texts at once as have `size` rows."""
    from captum.attr import IntegratedGradients

    module = subject.module.requires_grad_(False).eval()

    def logits(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return module(inputs_embeds=states, attention_mask=mask).logits

    words: Any = module.get_input_embeddings()
    for start in range(0, len(texts), size // STEPS):
        some = list(texts[start : start + size // STEPS])
        inputs = subject.tokenizer(some, return_tensors="pt", padding=True).to(subject.device)
        mask = inputs["attention_mask"]
        with torch.no_grad():
            states = words(inputs["input_ids"])
            target = logits(states, mask).argmax(-1)
        found = IntegratedGradients(logits).attribute(
            states,
            target=target,
            additional_forward_args=(mask,),
            n_steps=STEPS,
            internal_batch_size=size,
        )
        scores = found.sum(-1).cpu().numpy()
        yield from (row[:count] for row, count in zip(scores, mask.sum(1).tolist(), strict=True))


def fitting(subject: Subject, texts: Sequence[str]) -> str:
    """A step of `DiffMask.fit` beside a forward and backward pass of the bare model on as many texts."""
    rows = []
    for over in ("inputs", "states"):
        few, many = (fit_seconds(subject, texts, over, steps) for steps in (FIT_STEPS, 3 * FIT_STEPS))
        step = (many - few) / (2 * FIT_STEPS)
        bare = bare_seconds(subject, texts[:FIT_BATCH])
        rows.append([over, f"{1e3 * step:.1f}", f"{1e3 * bare:.1f}", f"{step / bare:.1f} (3)"])
    heads = ["fit over", "step, ms", "forward and backward, ms", "ratio"]
    return f"fitting, {FIT_BATCH} texts a step\n\n{table(heads, rows)}"


def fit_seconds(subject: Subject, texts: Sequence[str], over: str, steps: int) -> float:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few steps do not reach the margin
        DiffMask.fit(
            subject, texts, over, steps=steps, batch_size=FIT_BATCH, evaluate_every=10 * steps, seed=0
        )
    return time.perf_counter() - start


def bare_seconds(subject: Subject, texts: Sequence[str]) -> float:
    inputs = subject.encode(texts).inputs
    words: Any = subject.module.requires_grad_(False).get_input_embeddings()
    state = words(inputs["input_ids"]).detach().requires_grad_()

    def both() -> None:
        output = subject.module(inputs_embeds=state, attention_mask=inputs["attention_mask"]).logits
        torch.autograd.grad(output.sum(), state)

    with fast_products():  # as in a fit
        return 1 / speed(both, 1)


def speed(work: Work, count: int) -> float:
    """Texts a second, after a round that does not count."""
    work()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return count / median(seconds)


def against(texts_a_second: float, bare: float) -> list[str]:
    return [f"{texts_a_second:,.0f}", f"{texts_a_second / bare:.2f}"]


def peak() -> str:
    return f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if torch.cuda.is_available() else ""


@torch.no_grad()
def forward(subject: Subject, texts: Sequence[str], size: int) -> None:
    """The model as its authors use it: tokenise, pad, run, read the classes."""
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), size):
        inputs = subject.tokenizer(ordered[start : start + size], return_tensors="pt", padding=True)
        subject.module.eval()(**inputs.to(subject.device)).logits.argmax(-1).tolist()
