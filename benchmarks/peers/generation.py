"""An answer explained by masklens and by Inseq: gradient times input, 40 tokens after a prompt of 200.

    PYTHONPATH=src python benchmarks/peers/generation.py CAUSAL_MODEL

In an environment that has inseq and what masklens needs. masklens explains all layers, Inseq has the words
only. Both get the same answer, so nothing is generated. CPU seconds, one thread, in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

PROMPT, ANSWER, ROUNDS = 200, 40, 2


def main(folder: str) -> None:
    import inseq
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import masklens as ml
    from masklens.cli.demo import read_reviews

    torch.set_num_threads(1)  # threads that wait for each other would count as work
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(" ".join(read_reviews()[0]))["input_ids"][:PROMPT]
    exact = {"max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "do_sample": False}
    said = tokenizer.decode(model.generate(torch.tensor([ids]), **exact)[0])
    prompt = tokenizer.decode(ids)
    subject = ml.Subject(model, tokenizer)
    peer = inseq.load_model(model, "input_x_gradient", tokenizer=tokenizer)
    ways: dict[str, Callable[[], Any]] = {
        "masklens, all layers": lambda: ml.explain_generation(
            subject, prompt, "grad_x_input", continuation=said[len(prompt) :], sites="all"
        ),
        "inseq, words": lambda: peer.attribute(prompt, said, show_progress=False),
    }
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            way()
            print(f"{name}: {time.process_time() - start:.1f} CPU seconds", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
