"""What `explain` costs beside the model's own forward and backward passes.

A batch of sentences goes through a fine-tuned classifier in two ways, in turn, many times: bare (forward,
gradient of the chosen logits to the word embeddings) and through `masklens.explain` (which also tokenises,
hooks, reduces and makes the records). The model's own passes start from tokenised inputs.
"""

from __future__ import annotations

from statistics import median

import torch

from benchmarks.reference import Missing, checkpoint, sst2_dev
from benchmarks.timing import Way, in_turn, ratio, table
from masklens import Subject, explain

METHOD, BATCH, ROUNDS = "grad_x_input", 32, 5


def main() -> str:
    """Both ways' time and their ratio, with gradients at the word embeddings and at all sites."""
    try:
        folder, texts = checkpoint("mpnet-sst2"), sst2_dev()[0][:BATCH]
    except Missing as reason:
        return f"not run: {reason}"
    torch.set_num_threads(1)  # threads that wait for each other would count as work
    subject = Subject.from_pretrained(folder)
    rows = [row(subject, texts, sites) for sites in ((0,), subject.sites)]
    heads = ["method", "sites", "own passes (s)", "explain (s)", "ratio (at most 1.10)"]
    tokens = subject.encode(texts).shape[1]
    return f"{BATCH} sentences, {tokens} tokens, one thread, median of {ROUNDS}\n\n{table(heads, rows)}"


def row(subject: Subject, texts: list[str], sites: tuple[int, ...]) -> list[str]:
    ways = {"own": bare(subject, texts, sites), "ours": through(subject, texts, sites)}
    in_turn(ways, 1)  # the first call of each does not count
    times = in_turn(ways, ROUNDS)
    seconds = [f"{median(times[name]):.3f}" for name in ways]
    return [METHOD, str(len(sites)), *seconds, f"{ratio(times, 'ours', 'own'):.3f}"]


def bare(subject: Subject, texts: list[str], sites: tuple[int, ...]) -> Way:
    """The model's own forward pass, and one backward pass to each site's states."""
    batch = subject.encode(texts)

    def passes() -> object:
        logits, states = logits_and_states(subject, batch.inputs, sites)
        return torch.autograd.grad(logits.amax(1).sum(), states)

    return passes


def logits_and_states(
    subject: Subject, inputs: dict[str, torch.Tensor], sites: tuple[int, ...]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and the states at the sites, taken by plain hooks in evaluation mode, parameters frozen."""
    kept: list[torch.Tensor] = []

    def keep(_module: object, _args: object, output: torch.Tensor) -> torch.Tensor:
        state = output[0] if isinstance(output, tuple) else output
        if not state.requires_grad:
            state.requires_grad_()
        kept.append(state)
        return output

    module = subject.module.requires_grad_(False).eval()
    taken = [subject.points[site].module for site in sites if subject.points[site].side == "output"]
    hooks = [one.register_forward_hook(keep) for one in taken]
    try:
        return module(**inputs).logits, kept
    finally:
        for hook in hooks:
            hook.remove()


def through(subject: Subject, texts: list[str], sites: tuple[int, ...]) -> Way:
    return lambda: explain(subject, texts, method=METHOD, sites=sites, batch_size=BATCH)
