"""What every method costs with its own settings, in forward passes, on the packaged model and its reviews.

The search and per-text training methods are left out: what they cost is their budget or their steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from masklens import Subject, packaged
from masklens.demo import read_reviews
from masklens.explaining import explain
from masklens.methods import METHODS, load_all

TEXTS, ROUNDS = 8, 3
LEFT_OUT = ("diffmask", "reinforce", "erasure")


def main() -> str:
    """A row a method: CPU seconds, and how many forward passes that is."""
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    load_all()
    subject, texts = Subject.default(), sorted(read_reviews()[0], key=len)[:TEXTS]
    ways = {"forward pass": forward(subject, texts)} | {
        name: way(subject, texts, name)
        for name, method in METHODS.items()
        if name not in LEFT_OUT and not method.function.__module__.endswith("presets")
    }
    if (packaged.HOME / "lens-inputs").exists():
        lens = packaged.lens(subject)
        ways["diffmask with a lens"] = lambda: lens.explain(texts)
    times = {name: [cpu(run) for _ in range(ROUNDS)] for name, run in ways.items()}
    base = median(times["forward pass"])
    shape = tuple(subject.encode(texts).shape)
    lines = [f"{shape[0]} reviews, up to {shape[1]} tokens, one thread, median of {ROUNDS}", ""]
    lines += ["| method | CPU seconds | forward passes |", "|---|---|---|"]
    lines += [f"| {n} | {median(t):.3f} | {median(t) / base:.1f} |" for n, t in times.items()]
    return "\n".join(lines)


def forward(subject: Subject, texts: list[str]) -> Callable[[], object]:
    batch = subject.encode(texts)
    return torch.no_grad()(lambda: subject.module(**batch.inputs))


def way(subject: Subject, texts: list[str], name: str) -> Callable[[], object]:
    options = {"lm_head": packaged.HOME} if name == "decoded_gradcam" else {}
    return lambda: explain(subject, texts, name, **options)


def cpu(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start
