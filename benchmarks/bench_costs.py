"""What every method costs with its own settings, in forward passes, on the packaged model and its reviews.

The search and per-text training methods are left out: what they cost is their budget or their steps.
"""

from __future__ import annotations

from statistics import median

import torch

from benchmarks.timing import Way, in_turn, ratio, table
from masklens import DiffMask, Subject
from masklens.cli.demo import read_reviews
from masklens.methods.explain import explain
from masklens.methods.registry import METHODS, load_all
from masklens.model.default import HOME

TEXTS, ROUNDS = 8, 3
LEFT_OUT = ("diffmask", "reinforce", "erasure")


def main() -> str:
    """A table with one row per method: CPU seconds, and the same in forward passes."""
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    load_all()
    subject, texts = Subject.default(), sorted(read_reviews()[0], key=len)[:TEXTS]
    ways = {"forward pass": forward(subject, texts)} | {
        name: way(subject, texts, name)
        for name, method in METHODS.items()
        if name not in LEFT_OUT and not method.function.__module__.endswith("presets")
    }
    if (HOME / "lens-inputs").exists():
        lens = DiffMask.default(subject)
        ways["diffmask with a lens"] = lambda: lens.explain(texts)
    times = in_turn(ways, ROUNDS)
    texts_by_tokens = "{} reviews, up to {} tokens".format(*subject.encode(texts).shape)
    rows = [[n, f"{median(t):.3f}", f"{ratio(times, n, 'forward pass'):.1f}"] for n, t in times.items()]
    made = table(["method", "CPU seconds", "forward passes"], rows)
    return f"{texts_by_tokens}, one thread, median of {ROUNDS} rounds\n\n{made}"


def forward(subject: Subject, texts: list[str]) -> Way:
    batch = subject.encode(texts)
    return torch.no_grad()(lambda: subject.module(**batch.inputs))


def way(subject: Subject, texts: list[str], name: str) -> Way:
    options = {"lm_head": HOME} if name == "decoded_gradcam" else {}
    return lambda: explain(subject, texts, name, **options)
