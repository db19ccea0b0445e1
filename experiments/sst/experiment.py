"""`python -m experiments sst`: DiffMask on sentiment (De Cao et al. 2020, section 3.2 and appendix D.2).

    run(model_dir, data, out)                                     # everything that is missing
    run(model_dir, data, out, part=["faithfulness"], model="mpnet-sst5")

The parts are below, in `parts_for`. Lenses are kept in OUT/lenses/MODEL-OVER-seedK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from ..classifier import ClassifierRun
from ..labelled import Labelled
from ..model_run import OVERS, checkpoints_in, default_device
from ..parts import Found, asked_for, check_out, check_wanted, only_one
from ..results import command_line
from . import analysis as sst_analysis
from . import figures as sst_figures
from . import report as sst_report
from . import table2 as sst_table2
from .faithfulness import measure
from .stability import stability
from .treebank import read_split, read_trees

MODELS = ("mpnet-sst5", "mpnet-sst2", "minilm-sst5")
SEEDS = 5
"""lenses whose stability is measured"""


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str | None = None,
    part: Sequence[str] | None = None,
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
        model: only this one. By default every model that is there is measured for faithfulness, and the
            first of MODELS that is there for the rest.
        part: only these: parts such as "stability/states" or "lens/inputs/3" (the lens over inputs with the
            seed 3 above `seed`), or the beginning of their names, such as "stability".
        lens: a folder that has the lenses, as MODEL-OVER-seedK; by default they are fitted and kept in
            OUT/lenses.
        limit: use at most so many texts of each set, in batches of this size where lenses are fitted.
        steps: of fitting a lens.
        seed: of the first lens; those for stability have the next ones.
    """
    model_dir, out = Path(model_dir), Path(out)
    check_out(out)
    check_wanted(part, parts_for(True))
    names = [model] if model else checkpoints_in(model_dir, MODELS)
    given = default_device(device), None if lens is None else Path(lens), limit, steps, seed
    runs = {name: SentimentRun(model_dir, Path(data), out, name, *given) for name in (*MODELS, *names)}
    for name in names:
        for one in _todo(name == names[0], part):
            runs[name].do(one, tell)
    with only_one(out / "parts" / ".results.lock"):
        found = {name: done for name, one in runs.items() if (done := one.parts.done(parts_for(True)))}
        table2 = runs[names[0]].table2.parts.done(["erasure/table"]).get("erasure/table")
        command = command_line(
            "sst", model_dir="DIR", data="DIR", out="DIR", limit=limit, steps=steps, seed=seed
        )
        sst_report.write(out, found, table2, command)


def parts_for(first: bool) -> list[str]:
    """Every part of a model, in order. What one model is enough for is done for the `first` only."""
    names = [f"lens/{over}/{number}" for over in OVERS for number in range(SEEDS if first else 1)]
    names += [f"faithfulness/{over}" for over in OVERS]
    if first:
        names += [f"stability/{over}" for over in OVERS]
        names += [f"erasure/{what}" for what in sst_table2.STEPS]
        names += [f"analysis/{what}" for what in (*OVERS, "bottleneck")]
        names += ["figures"]
    return names


def _todo(first: bool, wanted: Sequence[str] | None) -> list[str]:
    """The parts that are asked for. Lenses that others need are fitted when these are done."""
    names = asked_for(parts_for(first), wanted)
    return names if wanted else [name for name in names if not name.startswith("lens/")]


class SentimentRun(ClassifierRun):
    """A classifier of sentences."""

    def do(self, name: str, tell: Callable[[str], None]) -> None:
        """Table 2 is of a GRU, not of a checkpoint: its parts have a folder of their own."""
        kind, _, rest = name.partition("/")
        if kind == "erasure":
            self.table2.parts.do(name, lambda: self.table2.do(rest), tell)
        else:
            self.parts.do(name, lambda: WORK[kind](self, rest), tell)

    @cached_property
    def table2(self) -> sst_table2.Table2:
        return sst_table2.Table2(self)

    def split(self, name: str) -> Labelled:
        return read_split(self.data, self.task, name).first(self.limit)

    @property
    def some_train_texts(self) -> list[str]:
        """From all over the training set: its sentences come in order of their sentiment."""
        texts = self.split("train").texts
        return texts[:: max(1, len(texts) // sst_analysis.STATISTICS_TEXTS)]


def _faithfulness(run: SentimentRun, over: str) -> Found:
    """What the lens's masks do on dev and test."""
    lens = run.lens(over)
    return {split: measure(lens, run.split(split), run.seed) for split in ("dev", "test")}


def _stability(run: SentimentRun, over: str) -> Found:
    """Lenses of several seeds on dev."""
    texts = run.split("dev").texts
    return stability([run.lens(over, k).explain(texts, batch_size=run.batch_size) for k in range(SEEDS)])


def _analysis(run: SentimentRun, what: str) -> Found:
    """What a lens keeps of the dev set, or how Schulz et al. score the last state of [CLS]."""
    sentences = read_trees(run.data, "dev")[: run.limit]
    texts = [sentence.text for sentence in sentences]
    if what == "bottleneck":
        return sst_analysis.bottleneck(run.subject, texts, run.some_train_texts, run.batch_size)
    return sst_analysis.analyse(run.lens(what).explain(texts, batch_size=run.batch_size), sentences)


def _figures(run: SentimentRun, _: str) -> Found:
    """Draw the examples, explained in every way."""
    lenses = {over: run.lens(over) for over in OVERS}
    found = sst_figures.examples(run.subject, lenses, run.some_train_texts, run.batch_size, run.steps)
    sst_figures.draw_examples(run.out, found)
    return {"predictions": {a.text: a.prediction for a in found["states"]}}


WORK: dict[str, Callable[[SentimentRun, str], Found | None]] = {
    "lens": SentimentRun.fit_lens,
    "faithfulness": _faithfulness,
    "stability": _stability,
    "analysis": _analysis,
    "figures": _figures,
}
"""how a part is done, by the first word of its name"""
