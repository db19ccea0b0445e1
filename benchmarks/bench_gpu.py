"""Texts a second on a GPU, tokenizer included, beside the bare model's forward pass in the same run.

    python -m benchmarks gpu

SST-2's development set, several times over. The bare model is timed at several batch sizes, of which the best
counts; methods choose their own. Wall-clock seconds: on a GPU the time goes into waiting, which CPU seconds
do not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.bench_methods import untrained_lens
from benchmarks.reference import Missing, checkpoint, sst2_dev
from benchmarks.timing import table
from masklens import Subject, explain

TEXTS, FEW = 8000, 400
"""texts, and how many of them for methods of many passes"""
BATCHES = (128, 256, 512, 1024)
ROUNDS, STEPS = 3, 50
AIMS = {
    "lens": 0.75,
    "random": 0.9,
    "grad_x_input": 0.3,
    "gradcam, all layers": 0.3,
    "decoded_gradcam, block 4": 0.25,
    "decoded_gradcam, all blocks": 0.12,
}
"""the share of the bare model's texts a second that is good"""


def main() -> str:
    if not torch.cuda.is_available():
        return "not run: there is no GPU that torch can use"
    try:
        folder, head, texts = checkpoint("minilm-sst2"), checkpoint("minilm-mlm"), sst2_dev()[0]
    except Missing as reason:
        return f"not run: {reason}"
    many = (texts * (TEXTS // len(texts) + 1))[:TEXTS]
    return report(Subject.from_pretrained(folder, device="cuda"), many, str(head))


def report(subject: Subject, texts: Sequence[str], head: str) -> str:
    """Each method's texts a second by the bare model's, and integrated gradients beside captum."""
    few = texts[:FEW]
    bare = max(speed(lambda size=size: forward(subject, texts, size), len(texts)) for size in BATCHES)
    rows = [["bare forward pass", f"{bare:,.0f}", "1.00", "", ""]]
    for name, work in methods(subject, texts, head).items():
        rows.append([name, *against(speed(work, len(texts)), bare), f"{AIMS[name]:.2f}", peak()])
    ours = speed(lambda: explain(subject, few, "integrated_gradients", n_steps=STEPS), len(few))
    theirs = max(speed(lambda size=size: captum(subject, few, size), len(few)) for size in (50, 200, 800))
    rows.append(["integrated_gradients", *against(ours, bare), "", peak()])
    rows.append(["integrated_gradients, captum", *against(theirs, bare), "", ""])
    said = (
        f"{len(texts):,} texts, {subject.device}, median of {ROUNDS}. Ours by captum's: {ours / theirs:.2f}"
    )
    return f"{said}\n\n{table(['way', 'texts a second', 'by bare', 'aim', 'peak GB'], rows)}"


def methods(subject: Subject, texts: Sequence[str], head: str) -> dict[str, Callable[[], object]]:
    lens = untrained_lens(subject, subject.encode(texts[:1]))
    lens.probe.to(subject.device)

    def way(method: str, **options: Any) -> Callable[[], object]:
        return lambda: explain(subject, texts, method, **options)

    return {
        "lens": way("diffmask", lens=lens),
        "random": way("random"),
        "grad_x_input": way("grad_x_input"),
        "gradcam, all layers": way("gradcam"),
        "decoded_gradcam, block 4": way("decoded_gradcam", lm_head=head, sites=[5]),
        "decoded_gradcam, all blocks": way("decoded_gradcam", lm_head=head),
    }


def speed(work: Callable[[], object], count: int) -> float:
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


def captum(subject: Subject, texts: Sequence[str], size: int) -> None:
    """captum's layer integrated gradients at the word embeddings, a text at a time."""
    from captum.attr import LayerIntegratedGradients

    module = subject.module.requires_grad_(False).eval()

    def logits(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return module(input_ids=ids, attention_mask=mask).logits

    method = LayerIntegratedGradients(logits, module.get_input_embeddings())
    for text in texts:
        inputs = subject.tokenizer(text, return_tensors="pt").to(subject.device)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        method.attribute(
            ids,
            baselines=torch.zeros_like(ids),
            additional_forward_args=(mask,),
            target=int(logits(ids, mask).argmax()),
            n_steps=STEPS,
            internal_batch_size=size,
        )
