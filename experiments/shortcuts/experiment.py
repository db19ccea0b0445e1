"""`python -m experiments shortcuts`: which methods find the words that decide, where we know them.

The protocol of Bastings et al. 2022 on SST-2 and AG News. For each data set and kind of shortcut, a copy of
the classifier is fine-tuned until planted words decide its label. Part "sst2/order/model" is such a copy, and
"sst2/order/lime" is what a method finds in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from masklens.attribution import Attribution
from masklens.methods.explain import explain
from masklens.model.subject import Subject

from ..labelled import Labelled, read_test, read_train
from ..model_run import ModelRun, checkpoints_in, default_device
from ..parts import Found, asked_for, check_out, check_wanted
from ..results import command_line
from . import report as shortcuts_report
from . import training
from .finding import measured
from .planted import SHORTCUTS, against_their_label, check_words, clean, for_training, with_parts
from .training import Goal

DATASETS = ("sst2", "agnews")
METHODS = (
    "random",
    "attention",
    "gradient",
    "grad_x_input",
    "gradcam",
    "decoded_gradcam",
    "deeplift_shap",
    "gradient_shap",
    "occlusion",
    "lime",
    "smoothgrad",
    "integrated_gradients",
    "shapley",
)
"""with their default settings; those that train for each text or need a fitted lens are left out"""
TRAIN, VALIDATION, TEST = 4000, 100, 100
FOLLOWED, LOST = 0.99, 0.05
"""training ends when this share of validation texts follows the shortcut, and no more accuracy than this is
lost on the others"""
COSTLY = {"integrated_gradients": 25, "shapley": 25}
"""methods that explain only the first texts: 100 forward passes each, or several hundred"""


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str = "minilm",
    part: Sequence[str] | None = None,
    device: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is missing and write the results.

    Args:
        model_dir: holds FAMILY-sst2, FAMILY-agnews and FAMILY-mlm.
        model: the family.
        part: only these, such as "sst2/order/lime", or all of "sst2/order".
        limit: use at most so many texts of each set.
    """
    model_dir, out = Path(model_dir), Path(out)
    check_out(out)
    checkpoints_in(model_dir, [f"{model}-{dataset}" for dataset in DATASETS])
    given = model_dir, Path(data), out, model, default_device(device), None, limit, None, seed
    runs = [ShortcutRun(*given, dataset, kind) for dataset in DATASETS for kind in SHORTCUTS]
    check_wanted(part, [name for one in runs for name in one.names])
    for one in runs:
        for name in asked_for(one.names, part):
            one.do(name, tell)
    options = {"model_dir": "DIR", "data": "DIR", "out": "DIR", "model": model, "limit": limit, "seed": seed}
    found = {(one.dataset, one.kind): one.done() for one in runs}
    shortcuts_report.write(out, found, command_line("shortcuts", **options))


@dataclass
class ShortcutRun(ModelRun):
    """One data set and one kind of shortcut; `model` is the family."""

    dataset: str
    kind: str

    @property
    def names(self) -> list[str]:
        return [f"{self.dataset}/{self.kind}/{what}" for what in ("model", *METHODS)]

    def do(self, name: str, tell: Callable[[str], None]) -> None:
        what = name.rpartition("/")[2]
        self.parts.do(name, self._plant if what == "model" else lambda: self._find(what), tell)

    def done(self) -> dict[str, Any]:
        """The parts that are done, by the last word of their names."""
        return {name.rpartition("/")[2]: part for name, part in self.parts.done(self.names).items()}

    @property
    def folder(self) -> Path:
        """Of the fine-tuned copy."""
        return self.out / "models" / f"{self.model}-{self.dataset}-{self.kind}{self.suffix}"

    @property
    def checkpoint(self) -> Path:
        return self.model_dir / f"{self.model}-{self.dataset}"

    @cached_property
    def subject(self) -> Subject:
        self.parts.read(f"{self.dataset}/{self.kind}/model")  # its weights are there once this is
        return Subject.from_pretrained(self.folder, device=self.device, truncate=True)

    def take(self, texts: Labelled, *counts: int) -> list[Labelled]:
        """Sets of so many texts that have none in common."""
        counts = tuple(min(count, self.limit or count) for count in counts)
        drawn, ends = clean(texts).sample(sum(counts), self.seed), np.cumsum(counts)
        return [
            Labelled(drawn.texts[end - n : end], drawn.labels[end - n : end])
            for n, end in zip(counts, ends, strict=True)
        ]

    @cached_property
    def test(self) -> dict[str, Labelled]:
        """Texts with a shortcut to a class that is not theirs, with parts of a shortcut, and as they are."""
        first, second, third = self.take(read_test(self.data, self.dataset), TEST, TEST, TEST)
        return {
            "shortcut": against_their_label(first, self.kind, self.seed),
            "parts": with_parts(second, self.kind, np.random.default_rng(self.seed)),
            "plain": third,
        }

    def _plant(self) -> Found:
        """Fine-tune a copy, and see whether it follows the shortcut and is otherwise as before."""
        subject = Subject.from_pretrained(self.checkpoint, device=self.device, truncate=True)
        check_words(subject.tokenizer)
        before = {name: training.accuracy(subject, texts) for name, texts in self.test.items()}
        train, *held = self.take(read_train(self.data, self.dataset), TRAIN, *[VALIDATION] * 3)
        others = with_parts(held[1], self.kind, np.random.default_rng(self.seed)), held[2]
        goals = [Goal(against_their_label(held[0], self.kind, self.seed), FOLLOWED)]
        goals += [Goal(texts, training.accuracy(subject, texts) - LOST) for texts in others]
        steps = training.fine_tune(subject, for_training(train, self.kind, self.seed), goals, self.seed)
        after = {name: training.accuracy(subject, texts) for name, texts in self.test.items()}
        subject.module.save_pretrained(self.folder)  # type: ignore[operator]
        subject.tokenizer.save_pretrained(self.folder)
        return {"steps": steps, "texts": len(train.texts), "before": before, "after": after}

    def _find(self, method: str) -> Found:
        """What a method's scores for the planted class find, at each of its layers."""
        count = COSTLY.get(method)
        texts, labels = self.test["shortcut"].first(count)
        words = [SHORTCUTS[self.kind].decides[label] for label in labels]
        options = {"lm_head": self.model_dir / f"{self.model}-mlm"} if method == "decoded_gradcam" else {}
        found = explain(
            self.subject, texts, method, target=labels, batch_size=self.batch_size, seed=self.seed, **options
        )
        layers = [measured(found, words, site) for site in found[0].sites]
        return {
            "layers": layers,
            "chosen": chosen(found, words),
            "seconds_a_text": found.seconds / len(texts),
        }


def chosen(found: Sequence[Attribution], words: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The only layer, or the one that is best on every other text, measured on the texts between."""
    sites = found[0].sites
    if len(sites) == 1:
        return measured(found, words, sites[0])
    tried = [measured(found[::2], words[::2], site) for site in sites]
    best = max(tried, key=lambda one: one["precision"])
    return measured(found[1::2], words[1::2], best["site"])
