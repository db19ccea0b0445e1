"""`masklens reproduce sst`: DiffMask on sentiment (De Cao et al. 2020, section 3.2 and appendix D.2).

    run(model_dir, data, out)                                     # everything that is missing
    run(model_dir, data, out, parts=["faithfulness"], model="mpnet-sst5")

The work is done in pieces, such as "faithfulness/inputs" of a model. Each is kept in OUT/parts as soon as it
is there and is not done again; lenses are kept in OUT/lenses/MODEL-OVER-seedK. Several processes may work
in one folder, each at its own pieces: results are assembled from the pieces that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..diffmask.lens import DiffMask
from ..subject import Subject
from . import sst_analysis, sst_figures, sst_report, sst_table2
from .labelled import Labelled
from .running import fast_products, only_one
from .sst_faithfulness import measure
from .sst_stability import stability
from .study import Study, check_parts, chosen, command, do_piece, models_there
from .treebank import read_split, read_trees, texts_to_fit_on

MODELS = ("mpnet-sst5", "mpnet-sst2", "minilm-sst5")
OVERS = ("inputs", "states")
SEEDS = 5
PARTS = ("erasure", "lens", "faithfulness", "stability", "analysis", "figures")
MARGIN = 0.1


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str | None = None,
    parts: Sequence[str] | None = None,
    lens: str | Path | None = None,
    device: str | None = None,
    limit: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is missing and write the results.

    Args:
        model_dir: holds the checkpoints, such as mpnet-sst5.
        model: do only this one. By default all that are there are measured for faithfulness, and the
            first of MODELS that is there for the rest.
        parts: do only these: a part such as "stability", or a piece such as "stability/states" or
            "lens/inputs/3" (the lens over inputs with the seed 3 above `seed`).
        lens: a folder that has the lenses, as MODEL-OVER-seedK; by default they are fitted and kept in
            OUT/lenses.
        limit: use at most so many texts of each set, and four times as many to fit lenses on, so many at
            a time.
        steps: of fitting a lens.
        seed: of the first lens; those for stability have the next ones.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = [model] if model else models_there(Path(model_dir), MODELS)
    given = None if lens is None else Path(lens)
    studies = [
        SentimentStudy(Path(model_dir), Path(data), Path(out), name, device, given, limit, steps, seed)
        for name in names
    ]
    with fast_products(device):
        for study, piece in _todo(studies, parts):
            do_piece(study, piece, DO, tell)
    with only_one(Path(out) / "parts" / ".results.lock"):
        sst_report.write(Path(out), command("sst", limit, steps, seed), studies[0].suffix)


def pieces(first: bool) -> Iterator[str]:
    """Every piece of a model; those that only one model is needed for if it is the `first`."""
    for over in OVERS:
        yield f"faithfulness/{over}"
    if first:
        yield from (f"stability/{over}" for over in OVERS)
        yield from (f"erasure/{piece}" for piece in sst_table2.PIECES)
        yield from (f"analysis/{what}" for what in (*OVERS, "bottleneck"))
        yield "figures"


def lenses(first: bool) -> Iterator[str]:
    """The lenses of a model; only the first model's stability is measured."""
    return (f"lens/{over}/{k}" for over in OVERS for k in range(SEEDS if first else 1))


def _todo(
    studies: Sequence[SentimentStudy], parts: Sequence[str] | None
) -> Iterator[tuple[SentimentStudy, str]]:
    """The pieces asked for, in order; lenses that others need are fitted when these are done."""
    check_parts(parts, PARTS, [*lenses(True), *pieces(True)])
    for i, study in enumerate(studies):
        every = [*(lenses(i == 0) if parts else ()), *pieces(i == 0)]
        yield from ((study, piece) for piece in chosen(every, parts))


class SentimentStudy(Study):
    """A classifier of sentences."""

    @property
    def task(self) -> str:
        """ "sst5" or "sst2" """
        return self.model.rpartition("-")[2]

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"margin": MARGIN}

    def path(self, piece: str) -> Path:
        """The GRU of Table 2 is no model of the folder: what is found of it has a place of its own."""
        usual = super().path(piece)
        return self.out / "parts" / f"gru{self.suffix}" / usual.name if piece.startswith("erasure") else usual

    @cached_property
    def subject(self) -> Subject:
        return Subject.from_pretrained(self.model_dir / self.model, device=self.device, truncate=True)

    @cached_property
    def table2(self) -> sst_table2.Table2:
        return sst_table2.Table2(self)

    @property
    def batch_size(self) -> int:
        return 32 if self.device == "cpu" else 256

    def split(self, name: str) -> Labelled:
        return read_split(self.data, self.task, name).first(self.limit)

    @property
    def some_train_texts(self) -> list[str]:
        """From all over the training set: its sentences come in order of their sentiment."""
        texts = self.split("train").texts
        return texts[:: max(1, len(texts) // sst_analysis.STATISTICS_TEXTS)]

    def lens(self, over: str, number: int = 0) -> DiffMask:
        """The lens with the seed `number` above the study's: loaded, or fitted and kept."""
        name = f"{self.model}-{over}-seed{self.seed + number}"
        folder = self.out / "lenses" / f"{name}{self.cut}"
        return self.load_or_fit(self.subject, name, folder, lambda place: self._fit(over, number, place))

    def _fit(self, over: str, number: int, folder: Path) -> None:
        limit, seed = None if self.limit is None else 4 * self.limit, self.seed + number
        texts, watched, judged = texts_to_fit_on(self.data, self.task, limit)
        self.fit_into(
            folder,
            f"lens/{over}/{number}",
            self.subject,
            texts,
            over,
            MARGIN,
            seed,
            held_out=judged,
            validation=watched,
        )


def _lens(study: SentimentStudy, which: str) -> None:
    """Fit a lens; its own card and piece are written with it."""
    over, number = which.split("/")
    study.lens(over, int(number))


def _faithfulness(study: SentimentStudy, over: str) -> dict[str, Any]:
    """The lens's masks on dev and test."""
    lens = study.lens(over)
    return {split: measure(lens, study.split(split), study.seed) for split in ("dev", "test")}


def _stability(study: SentimentStudy, over: str) -> dict[str, Any]:
    """Lenses of five seeds on dev."""
    texts = study.split("dev").texts
    return stability([study.lens(over, k).explain(texts, batch_size=study.batch_size) for k in range(SEEDS)])


def _analysis(study: SentimentStudy, what: str) -> dict[str, Any]:
    """What a lens keeps of the dev set, or how Schulz et al. see the last state of [CLS]."""
    sentences = read_trees(study.data, "dev")[: study.limit]
    texts = [sentence.text for sentence in sentences]
    if what == "bottleneck":
        return sst_analysis.bottleneck(study.subject, texts, study.some_train_texts, study.batch_size)
    return sst_analysis.analyse(study.lens(what).explain(texts, batch_size=study.batch_size), sentences)


def _figures(study: SentimentStudy, _: str) -> dict[str, Any]:
    """The examples in every way; the pictures and the page are drawn with them."""
    lenses = {over: study.lens(over) for over in OVERS}
    found = sst_figures.examples(study.subject, lenses, study.some_train_texts, study.batch_size, study.steps)
    sst_figures.draw_examples(study.out, found)
    return {"predictions": {a.text: a.prediction for a in found["states"]}}


DO: dict[str, Callable[[SentimentStudy, str], dict[str, Any] | None]] = {
    "erasure": sst_table2.do,
    "lens": _lens,
    "faithfulness": _faithfulness,
    "stability": _stability,
    "analysis": _analysis,
    "figures": _figures,
}
"""what is done for a part"""
