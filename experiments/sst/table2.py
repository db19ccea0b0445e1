"""Table 2 of DiffMask: masks learned for single sentences against erasure by exact search, on a GRU.

A set of words is enough if the output without the others (zero in their place) is at most the margin away;
erasure finds every smallest set that is enough and keeps a word. The learned masks aim at the same margin.
With several optima, a mask is compared with the closest one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from masklens.bootstrap import interval
from masklens.errors import MethodError
from masklens.files import whole
from masklens.methods.explain import explain
from masklens.methods.recurrent import Recurrence, members
from masklens.model.subject import Subject

from ..model_run import ModelRun
from ..parts import Found
from .greedy import judge_of, pruned, settled
from .gru import EPOCHS, HIDDEN, SentimentGru, Vocabulary, accuracy, subject_for, train_gru, word_vectors
from .treebank import Sentence, read_trees

LONGEST = 25
"""words: exact search goes over subsets"""
MARGIN = 0.1
LEARNED: dict[str, dict[str, Any]] = {
    "diffmask": {"steps": 1000, "lr": 0.05},
    "reinforce": {"steps": 1000, "lr": 0.1},
}
"""options of the methods, each the better of two rates on training sentences"""
SLICES = 4
"""what goes sentence by sentence is done in so many parts"""
STEPS = ("gru", *(f"{what}/{k}" for what in ("exact", *LEARNED) for k in range(SLICES)), "table")
"""the names of the parts, after "erasure/" """


class Table2:
    """The classifier, the sentences, and the parts that are done."""

    def __init__(self, run: ModelRun) -> None:
        self.run, self.parts = run, run.parts_of("gru")
        self.weights = run.out / "gru" / f"gru{run.suffix}.safetensors"

    def do(self, step: str) -> Found:
        what, _, number = step.partition("/")
        if what in ("gru", "table"):
            return train(self) if what == "gru" else score_all(self)
        some = self.texts[int(number) :: SLICES]
        return search(self, some) if what == "exact" else learn(self, some, what)

    def read(self, step: str) -> Any:
        return self.parts.read(f"erasure/{step}")

    def of_each(self, what: str) -> list[Any]:
        """What the parts of "exact" or of a method found, in the order of the sentences."""
        found: list[Any] = [None] * len(self.texts)
        for k in range(SLICES):
            found[k::SLICES] = self.read(f"{what}/{k}")["sentences"]
        return found

    @cached_property
    def splits(self) -> dict[str, list[Sentence]]:
        return {name: read_trees(self.run.data, name) for name in ("train", "dev", "test")}

    @cached_property
    def texts(self) -> list[str]:
        """Dev sentences of at most 25 words."""
        short = [s.text for s in self.splits["dev"] if len(s.words) <= LONGEST]
        return short[: self.run.limit]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(*self.splits.values())

    @cached_property
    def model(self) -> SentimentGru:
        """The classifier, before it is trained or loaded."""
        vectors = word_vectors(self.run.model_dir / self.checkpoint, self.vocabulary)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.run.seed)
            model = SentimentGru(vectors)
        return model.to(self.run.device)

    @property
    def checkpoint(self) -> str:
        """Whose word embeddings are used: the smallest reference checkpoint that is there."""
        small = "minilm-sst5"
        return small if (self.run.model_dir / small).exists() else self.run.model

    @cached_property
    def subject(self) -> Subject:
        from safetensors.torch import load_file

        if not self.weights.exists():
            raise MethodError("erasure/gru has to be done first")
        self.model.load_state_dict(load_file(self.weights), strict=False)
        return subject_for(self.model, self.vocabulary)


def train(table: Table2) -> dict[str, Any]:
    """Train the classifier and keep its weights, all but the embeddings."""
    from safetensors.torch import save_file

    splits, limit = table.splits, table.run.limit
    epochs = EPOCHS if limit is None else 1
    sentences = splits["train"][: None if limit is None else 40 * limit]
    train_gru(table.model, table.vocabulary, sentences, splits["dev"], table.run.seed, epochs)
    kept = {k: v.contiguous().cpu() for k, v in table.model.state_dict().items() if k != "embed.weight"}
    with whole(table.weights) as part:
        save_file(kept, part)
    scores = {name: accuracy(table.model, table.vocabulary, splits[name]) for name in ("dev", "test")}
    return {"accuracy": scores, "embeddings": table.checkpoint, "hidden": HIDDEN, "epochs": epochs}


def search(table: Table2, texts: Sequence[str]) -> dict[str, Any]:
    """All optima of every sentence, as lists of kept words."""
    optima = [smallest_sets(table.subject, text, MARGIN) for text in texts]
    return {"sentences": [[row.nonzero()[0].tolist() for row in sets] for sets in optima]}


@torch.no_grad()
def smallest_sets(subject: Subject, text: str, margin: float) -> np.ndarray:
    """Every smallest set of words, one at least, that is enough: (optima, words) bool."""
    model: Any = subject.module
    batch = subject.encode([text])
    reference, states = subject.states(batch)
    vectors = states[0][0]  # (words, width)
    free = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    levels = Recurrence(model.gru, model.classify).levels(vectors, torch.zeros_like(vectors), free)
    next(levels)  # nothing kept
    for level in levels:
        divergence = subject.task.divergence(reference, model.classify(level.hidden))
        if (enough := divergence <= margin).any():
            return members(level.codes[enough], len(vectors)).cpu().numpy()
    raise AssertionError("a whole text is enough for itself")


def learn(table: Table2, texts: Sequence[str], method: str) -> dict[str, Any]:
    """P(kept) of every word by a learned mask; no sentence's depends on the others'."""
    options = dict(LEARNED[method])
    if table.run.steps is not None:
        options["steps"] = table.run.steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that masks without a lens are slow is known here
        found = explain(
            table.subject,
            texts,
            method,
            batch_size=max(1, len(texts)),
            seed=table.run.seed,
            margin=MARGIN,
            **options,
        )
    return {"sentences": [a.scores[0].tolist() for a in found], "options": options}


def score_all(table: Table2) -> dict[str, Any]:
    """The table: the learned masks rounded, and after settling; settling alone, from whole sentences, for
    comparison; and what exact search keeps."""
    gru, optima = table.read("gru"), table.of_each("exact")
    batch = table.subject.encode(table.texts)
    site, zero = table.subject.sites[0], torch.zeros(1, device=batch.valid.device)
    judge = judge_of(table.subject, batch, site, zero)
    masks: dict[str, Tensor] = {}
    for method in LEARNED:
        probability = _padded(table.of_each(method), batch.valid)
        masks[method] = rounded(probability, batch.valid)
        masks[f"{method}_settled"] = settled(table.subject, batch, site, zero, probability, MARGIN)
    masks["settling_alone"] = pruned(judge, batch.valid, MARGIN)
    every = torch.arange(len(batch), device=batch.valid.device)
    rows = {name: against(keep, batch.valid, optima) for name, keep in masks.items()}
    for name, keep in masks.items():
        rows[name]["within_margin"] = float((judge(every, keep) <= MARGIN).float().mean())
    sizes = [len(sets[0]) for sets in optima]
    return {
        "rows": rows,
        "sentences": len(batch),
        "accuracy": gru["accuracy"],
        "embeddings": gru["embeddings"],
        "margin": MARGIN,
        "options": {method: table.read(f"{method}/0")["options"] for method in LEARNED},
        "exact": {
            "l0": float(np.mean(np.array(sizes) / batch.valid.sum(1).cpu().numpy())),
            "sizes": np.bincount(sizes).tolist(),
            "optima": float(np.mean([len(sets) for sets in optima])),
        },
    }


def _padded(rows: Sequence[Sequence[float]], valid: Tensor) -> Tensor:
    out = torch.zeros(valid.shape, device=valid.device)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out


def rounded(probability: Tensor, valid: Tensor) -> Tensor:
    """Words kept with more than probability 1/2, and the most probable one at least."""
    keep = (probability > 0.5) & valid
    most = torch.where(valid, probability, -1.0).argmax(1)
    empty = ~keep.any(1)
    keep[empty, most[empty]] = True
    return keep


def against(keep: Tensor, valid: Tensor, optima: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Precision, recall and F1 over the words of each sentence, averaged over sentences; the share of
    sentences whose mask is an optimum; the share of words kept. 95% bootstrap intervals over sentences."""
    lengths = valid.sum(1).cpu().numpy()
    kept = [np.flatnonzero(row).tolist() for row in keep.cpu().numpy()]
    each = np.array(
        [[*closest(k, sets), len(k) / n] for k, sets, n in zip(kept, optima, lengths, strict=True)]
    )
    names = ("precision", "recall", "f1", "optimality", "l0")
    found: dict[str, Any] = {name: float(each[:, i].mean()) for i, name in enumerate(names)}
    return found | {f"{name}_interval": list(interval(each[:, i])) for i, name in enumerate(names)}


def closest(kept: Sequence[int], optima: Sequence[Sequence[int]]) -> tuple[float, float, float, float]:
    """Precision, recall, F1 and whether it is one, of a mask against the optimum with which it shares most.

    Optima of a sentence are of one size, so this is the one with the largest F1.
    """
    shared = max(len(set(kept) & set(one)) for one in optima)
    size = len(optima[0])
    precision, recall = shared / len(kept), shared / size
    f1 = 2 * shared / (len(kept) + size)
    return precision, recall, f1, float(shared == size == len(kept))
