"""What other tools' explainers take for some sentences, beside a bare forward pass, in one process.

    python benchmarks/peers.py CHECKPOINT < texts.json

It prints CPU seconds a text by name, as JSON; a tool that is not installed is left out. It needs nothing of
ours, so that it can run in an environment of its own: MASKLENS_PEERS names that environment's Python.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

ROUNDS, STEPS = 3, 50

Way = Callable[[], object]


def forward(model: Any, tokenizer: Any, texts: Sequence[str]) -> Way:
    """One batch, sorted by length, tokenised before."""
    inputs = tokenizer(sorted(texts, key=len), padding=True, return_tensors="pt")
    return torch.no_grad()(lambda: model(**inputs))


def captum(model: Any, tokenizer: Any, texts: Sequence[str]) -> Way:
    """LayerIntegratedGradients at the embeddings, towards the predicted class."""
    from captum.attr import LayerIntegratedGradients

    encoded = [tokenizer(text, return_tensors="pt") for text in texts]
    method = LayerIntegratedGradients(
        lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits, model.base_model.embeddings
    )

    def explain(one: Any) -> object:
        ids, mask = one["input_ids"], one["attention_mask"]
        with torch.no_grad():
            target = int(model(**one).logits.argmax())
        padding = torch.full_like(ids, tokenizer.pad_token_id)
        return method.attribute(
            ids, baselines=padding, target=target, additional_forward_args=(mask,), n_steps=STEPS
        )

    return lambda: [explain(one) for one in encoded]


def transformers_interpret(model: Any, tokenizer: Any, texts: Sequence[str]) -> Way:
    """Its default explainer."""
    from transformers_interpret import SequenceClassificationExplainer

    explain = SequenceClassificationExplainer(model, tokenizer)
    return lambda: [explain(text) for text in texts]


def interpreto(model: Any, tokenizer: Any, texts: Sequence[str]) -> Way:
    """IntegratedGradients with as many steps as the others."""
    from interpreto import IntegratedGradients

    explain = IntegratedGradients(model, tokenizer, batch_size=4, n_perturbations=STEPS)
    return lambda: explain(list(texts))


PEERS = (forward, captum, transformers_interpret, interpreto)


def main(folder: str, texts: Sequence[str]) -> dict[str, float]:
    """CPU seconds a text; the ways take turns, so that a busy machine slows them alike."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ways: dict[str, Way] = {}
    for peer in PEERS:
        with contextlib.suppress(ImportError):
            ways[peer.__name__] = peer(model, tokenizer, texts)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            way()
            times[name].append((time.process_time() - start) / len(texts))
    return {name: median(spent) for name, spent in times.items()}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        found = main(sys.argv[1], json.load(sys.stdin))
    print(json.dumps(found))
