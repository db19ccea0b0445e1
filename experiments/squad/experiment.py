"""`python -m experiments squad`: DiffMask on question answering (De Cao et al. 2020, section 3.3).

    run(model_dir, data, out)                                     # everything that is missing
    run(model_dir, data, out, part=["lens/inputs"])

The parts are below, in `parts_for`. Lenses are kept in OUT/lenses/MODEL-OVER-MARGIN, and what they keep of
every question in OUT/kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from masklens.diffmask.lens import DiffMask
from masklens.model.subject import Subject

from ..model_run import OVERS, ModelRun, checkpoints_in, default_device
from ..parts import Found, asked_for, check_out, check_wanted, only_one
from ..results import command_line
from . import figures as squad_figures
from . import groups as squad_groups
from . import masks as squad_masks
from . import report as squad_report
from .questions import Question, read_questions, shuffled, that_fit

MODELS = ("mpnet-squad", "minilm-squad")
MARGINS = (0.2, 0.5, 1.0)
"""the margins in nats, for start and end together; the last one is the paper's"""
MARGIN = MARGINS[-1]
LONGEST = 384
"""the longest question with its passage, in tokens, as in the paper"""
TRAIN, JUDGED = 30_000, 800
"""the number of questions to fit on, and to calibrate a lens on (and as many to judge it with)"""
BATCH = 224
"""questions per step, 16 per site; the GPU default, twice as many, needs about 140 GB by our estimate"""


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
        model_dir: holds the checkpoints, such as mpnet-squad.
        model: which one; by default the first of MODELS that is there.
        part: only these: parts such as "sites/inputs/0.2", or the beginning of their names, such as "sites".
        lens: a folder that has the lenses, as MODEL-OVER-MARGIN; by default they are fitted and kept in
            OUT/lenses.
        limit: use at most so many questions, and four times as many to fit lenses on.
        steps: of fitting a lens.
    """
    model_dir, out = Path(model_dir), Path(out)
    check_out(out)
    check_wanted(part, parts_for())
    name = model or checkpoints_in(model_dir, MODELS)[0]
    lenses = None if lens is None else Path(lens)
    run = QuestionRun(model_dir, Path(data), out, name, default_device(device), lenses, limit, steps, seed)
    for one in asked_for(parts_for(), part):
        run.do(one, tell)
    with only_one(out / "parts" / ".results.lock"):
        command = command_line(
            "squad", model_dir="DIR", data="DIR", out="DIR", limit=limit, steps=steps, seed=seed
        )
        squad_report.write(out, name, run.parts.done(parts_for()), MARGINS, command)


def parts_for() -> list[str]:
    """Every part, in order."""
    names = []
    for over in OVERS:
        names += [f"{kind}/{over}/{margin}" for kind in ("lens", "sites") for margin in MARGINS]
        names += [f"{kind}/{over}" for kind in ("kept", "groups", "speech")]
    return [*names, "figures"]


class QuestionRun(ModelRun):
    """A reader of questions."""

    def do(self, name: str, tell: Callable[[str], None]) -> None:
        kind, _, rest = name.partition("/")
        self.parts.do(name, lambda: WORK[kind](self, rest), tell)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"longest": LONGEST}

    @cached_property
    def subject(self) -> Subject:
        return Subject.from_pretrained(
            self.model_dir / self.model, device=self.device, truncate=True, max_length=LONGEST
        )

    @cached_property
    def dev(self) -> list[Question]:
        """The questions that fit, or the first of them."""
        return that_fit(self.subject, read_questions(self.data, "dev"), LONGEST)[: self.limit]

    @cached_property
    def train(self) -> list[Question]:
        """Questions to fit on, in random order; the first 2 x JUDGED are to judge a fit with."""
        count = TRAIN + 2 * JUDGED if self.limit is None else 4 * self.limit
        every = shuffled(read_questions(self.data, "train"), self.seed)
        return that_fit(self.subject, every[: count + count // 20], LONGEST)[:count]

    def lens(self, over: str, margin: float = MARGIN) -> DiffMask:
        name = f"{self.model}-{over}-{margin}"
        return self.load_or_fit(name, self.suffix, lambda folder: self._fit(over, margin, folder))

    def _fit(self, over: str, margin: float, folder: Path) -> None:
        judged = JUDGED if self.limit is None else self.limit // 2
        pairs = [q.pair for q in self.train]
        how = {
            "held_out": pairs[:judged],
            "validation": pairs[judged : 2 * judged],
            "batch_size": BATCH,
        }
        self.fit_into(folder, f"lens/{over}/{margin}", pairs[2 * judged :], over, margin, self.seed, **how)

    def kept_path(self, over: str) -> Path:
        return self.out / "kept" / f"{self.model}-{over}{self.suffix}.npz"

    def kept(self, over: str) -> squad_masks.Kept:
        """What the lens with the paper's margin keeps of every question."""
        path = self.kept_path(over)
        if not path.exists():
            self.do(f"kept/{over}", lambda line: None)
        return squad_masks.read_kept(path)


def _lens(run: QuestionRun, which: str) -> None:
    """Fit a lens, which writes its own part."""
    over, margin = which.split("/")
    run.lens(over, float(margin))


def _sites(run: QuestionRun, which: str) -> Found:
    over, margin = which.split("/")
    return squad_masks.measure(run.lens(over, float(margin)), run.dev, run.seed)


def _kept(run: QuestionRun, over: str) -> Found:
    path = run.kept_path(over)
    path.parent.mkdir(parents=True, exist_ok=True)
    return squad_masks.write_kept(run.lens(over), run.dev, path)


def _groups(run: QuestionRun, over: str) -> Found:
    return {"groups": squad_groups.group_means(run.subject, run.dev, run.kept(over))}


def _speech(run: QuestionRun, over: str) -> Found:
    found = squad_groups.attributions(run.subject, run.dev, run.kept(over), over)
    return {"tables": squad_groups.parts_of_speech(found)}


def _figures(run: QuestionRun, _: str) -> Found:
    """Draw the examples, explained in every way."""
    lenses = {over: run.lens(over) for over in OVERS}
    first = squad_figures.example(read_questions(run.data, "dev"))
    quick = run.limit is not None
    train = run.train[: 64 if quick else 2000]
    compared = squad_figures.compared(run.subject, lenses["inputs"], first, train, quick)
    squad_figures.draw_compared(run.out, compared)
    others = squad_figures.further_examples(run.subject, run.dev)
    squad_figures.draw_examples(run.out, lenses, first, others)
    erased = compared["erasure"].settings
    return {
        "question": list(first.pair),
        "answer": compared["inputs"].prediction,
        "gold": list(first.answers),
        "erasure": {k: v for k, v in erased.items() if k.startswith(("size", "optima"))},
        "scores": {
            name: dict(zip(["tokens", "scores"], [list(a.tokens), a.scores[0].tolist()], strict=True))
            for name, a in compared.items()
        },
    }


WORK: dict[str, Callable[[QuestionRun, str], Found | None]] = {
    "lens": _lens,
    "sites": _sites,
    "kept": _kept,
    "groups": _groups,
    "speech": _speech,
    "figures": _figures,
}
"""how a part is done, by the first word of its name"""
