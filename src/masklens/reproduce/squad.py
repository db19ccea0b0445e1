"""`masklens reproduce squad`: DiffMask on question answering (De Cao et al. 2020, section 3.3).

    run(model_dir, data, out)                                     # everything that is missing
    run(model_dir, data, out, parts=["lens/inputs"])

The work is done in pieces, such as "sites/inputs/1.0". Each is kept in OUT/parts as soon as it is there and
is not done again; lenses are kept in OUT/lenses/MODEL-OVER-MARGIN, what they keep of every question in
OUT/kept. Several processes may work in one folder, each at its own pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..diffmask.lens import DiffMask
from ..subject import Subject
from . import squad_figures, squad_groups, squad_masks, squad_report
from .questions import Question, read_questions, shuffled, that_fit
from .running import fast_products, only_one
from .study import Study, check_parts, chosen, command, do_piece, models_there

MODELS = ("mpnet-squad", "minilm-squad")
OVERS = ("inputs", "states")
MARGINS = (0.2, 0.5, 1.0)
"""nats, of start and end together; the last is the paper's"""
MARGIN = MARGINS[-1]
LONGEST = 384
"""tokens of question and passage, as in the paper"""
TRAIN, JUDGED = 30_000, 800
"""questions to fit on, and to calibrate a lens and to judge it with"""
BATCH = 224
"""questions of a step, 16 a site: the default on a GPU, twice as many, needs about 140 GB by our estimate"""
PARTS = ("lens", "sites", "kept", "groups", "speech", "figures")


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
        model_dir: holds the checkpoints, such as mpnet-squad.
        model: which one; by default the first of MODELS that is there.
        parts: do only these: a part such as "sites", or a piece such as "sites/inputs/0.2".
        lens: a folder that has the lenses, as MODEL-OVER-MARGIN; by default they are fitted and kept in
            OUT/lenses.
        limit: use at most so many questions, and four times as many to fit lenses on.
        steps: of fitting a lens.
    """
    check_parts(parts, PARTS, list(pieces()))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = model or models_there(Path(model_dir), MODELS)[0]
    given = None if lens is None else Path(lens)
    study = QuestionStudy(Path(model_dir), Path(data), Path(out), name, device, given, limit, steps, seed)
    with fast_products(device):
        for piece in chosen(pieces(), parts):
            do_piece(study, piece, DO, tell)
    with only_one(study.parts / ".results.lock"):
        squad_report.write(study.out, study.parts, name, command("squad", limit, steps, seed))


def pieces() -> Iterator[str]:
    for over in OVERS:
        yield from (f"lens/{over}/{margin}" for margin in MARGINS)
        yield from (f"sites/{over}/{margin}" for margin in MARGINS)
        yield from (f"{part}/{over}" for part in ("kept", "groups", "speech"))
    yield "figures"


class QuestionStudy(Study):
    """A reader of questions."""

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
        """Loaded, or fitted and kept."""
        name = f"{self.model}-{over}-{margin}"
        folder = self.out / "lenses" / f"{name}{self.suffix}"
        return self.load_or_fit(self.subject, name, folder, lambda place: self._fit(over, margin, place))

    def _fit(self, over: str, margin: float, folder: Path) -> None:
        """Begin from the lens with the next smaller margin: gates close one after the other."""
        place = MARGINS.index(margin)
        judged = JUDGED if self.limit is None else self.limit // 2
        pairs = [q.pair for q in self.train]
        self.fit_into(
            folder,
            f"lens/{over}/{margin}",
            self.subject,
            pairs[2 * judged :],
            over,
            margin,
            self.seed,
            held_out=pairs[:judged],
            validation=pairs[judged : 2 * judged],
            start=self.lens(over, MARGINS[place - 1]) if place else None,
            batch_size=BATCH,
        )

    def kept_path(self, over: str) -> Path:
        return self.out / "kept" / f"{self.model}-{over}{self.suffix}.npz"

    def kept(self, over: str) -> squad_masks.Kept:
        """What the lens with the paper's margin keeps of every question."""
        path = self.kept_path(over)
        if not path.exists():
            do_piece(self, f"kept/{over}", DO, lambda line: None)
        return squad_masks.read_kept(path)


def _lens(study: QuestionStudy, which: str) -> None:
    """Fit a lens; its own card and piece are written with it."""
    over, margin = which.split("/")
    study.lens(over, float(margin))


def _sites(study: QuestionStudy, which: str) -> dict[str, Any]:
    over, margin = which.split("/")
    return squad_masks.measure(study.lens(over, float(margin)), study.dev, study.seed)


def _kept(study: QuestionStudy, over: str) -> dict[str, Any]:
    path = study.kept_path(over)
    path.parent.mkdir(parents=True, exist_ok=True)
    return squad_masks.write_kept(study.lens(over), study.dev, path)


def _groups(study: QuestionStudy, over: str) -> dict[str, Any]:
    return {"groups": squad_groups.group_means(study.subject, study.dev, study.kept(over))}


def _speech(study: QuestionStudy, over: str) -> dict[str, Any]:
    found = squad_groups.attributions(study.subject, study.dev, study.kept(over), over)
    return {"tables": squad_groups.parts_of_speech(found)}


def _figures(study: QuestionStudy, _: str) -> dict[str, Any]:
    """The examples in every way; the pictures and the page are drawn with them."""
    lenses = {over: study.lens(over) for over in OVERS}
    first = squad_figures.example(read_questions(study.data, "dev"))
    quick = study.limit is not None
    train = study.train[: 64 if quick else 2000]
    compared = squad_figures.compared(study.subject, lenses["inputs"], first, train, quick)
    squad_figures.draw_compared(study.out, compared)
    others = squad_figures.further_examples(study.subject, study.dev)
    maps = squad_figures.draw_examples(study.out, lenses, first, others)
    squad_figures.page(study.out, [*maps, *compared.values()])
    erased = compared["erasure"].settings
    return {
        "question": list(first.pair),
        "answer": maps[0].prediction,
        "gold": list(first.answers),
        "erasure": {k: v for k, v in erased.items() if k.startswith(("size", "optima"))},
        "scores": {
            name: dict(zip(["tokens", "scores"], [list(a.tokens), a.scores[0].tolist()], strict=True))
            for name, a in compared.items()
        },
    }


DO: dict[str, Callable[[QuestionStudy, str], dict[str, Any] | None]] = {
    "lens": _lens,
    "sites": _sites,
    "kept": _kept,
    "groups": _groups,
    "speech": _speech,
    "figures": _figures,
}
"""what is done for a part"""
