"""DiffMask (De Cao et al. 2020): learn which inputs or hidden states a model does not need.

lens = DiffMask.fit(subject, texts, over="inputs", margin=0.1)
lens.diagnostics                       # per site, on held-out texts, with hard masks
lens.explain(texts)                    # keep probabilities, sites x tokens
lens.save_pretrained("lens"); DiffMask.from_pretrained("lens", subject)
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attribution import Attribution, Text
from ..errors import LensError, TrainingError, check_seed, did_you_mean
from ..files import check_folder_writable, held, whole
from ..methods.registry import Request, register
from ..model.batch import as_texts
from ..model.default import HOME
from ..model.masking import Baseline
from ..model.subject import Subject
from ..progress import stage
from ..records.layers import site_name
from .class_bias import class_biases
from .first_states import begin
from .forecast import FEW_TEXTS, describe_texts, describe_time, judge_texts
from .identity import identity
from .networks import MaskRow, Over, Probe, needed_sites, rows_for, seeded
from .objective import LensObjective
from .per_text import diffmask_per_text
from .processes import is_main
from .published import PublishedProbe, fit_published
from .saved import read_lens, write_lens
from .texts import FrozenTexts
from .trainer import PRECISIONS, Diagnostic, Diagnostics, Settings, Training, diagnostics

KEEP_BYTES = 2 * 10**9
"""memory for frozen states on a CPU; on a GPU a third of what is free"""
RECIPES = ("default", "published")
LOCK = ".lock"
FEWEST_HELD_OUT = 10
"""with fewer texts to judge it on, no site of a lens is ok"""
ALL_KEPT = 0.999
"""a larger share of tokens kept means that nothing was found out"""


class DiffMask:
    """A fitted lens: gate networks that tell, from the states of a model, what it can do without."""

    def __init__(
        self,
        subject: Subject,
        probe: Probe | PublishedProbe,
        over: Over,
        settings: Settings,
        diagnostics: Sequence[Diagnostic] = (),
        events: Sequence[str] = (),
        history: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.subject, self.probe, self.over, self.settings = subject, probe, over, settings
        self.diagnostics, self.events, self.history = Diagnostics(diagnostics), list(events), list(history)

    @property
    def sites(self) -> tuple[int, ...]:
        return tuple(row.site for row in self.probe.rows)

    @classmethod
    def fit(
        cls,
        subject: Subject,
        texts: Iterable[Text],
        over: Over = "inputs",
        margin: float = 0.1,
        seed: int = 0,
        sites: Sequence[int] | None = None,
        held_out: Iterable[Text] | float = 0.1,
        validation: Iterable[Text] | None = None,
        folder: str | os.PathLike[str] | None = None,
        start: DiffMask | None = None,
        report: Callable[[str], object] | None = None,
        show_progress: bool = False,
        recipe: str = "default",
        **settings: Any,
    ) -> DiffMask:
        """Learn masks over a corpus so that outputs move by at most `margin` nats on average (Eqs. 1 to 3).

        Args:
            over: "inputs" (which words can go, judged from the states up to each site), "states" (which
                states of a site can go), or pairs (edited site, read site).
            sites: the sites to judge from; all by default.
            held_out: texts for `diagnostics`, or the share of `texts` to set aside.
            validation: texts on which the finished gates are calibrated; by default half of the held-out
                ones, which are then not used for `diagnostics`.
            folder: where checkpoints go; an interrupted fit goes on from there.
            start: a lens of the same model, form and sites to begin from.
            report: is told beforehand how many texts there are, if they are enough, and how long it takes.
            recipe: "default", or "published" for the training of the paper, which may collapse.
            settings: any field of `Settings`.
        """
        check_seed(seed)
        chosen = _settings(settings, margin, int(seed))
        rows = _check_fit(subject, over, sites, start, recipe)
        if start is not None:
            chosen = replace(chosen, hidden=start.settings.hidden)
        with torch.inference_mode(False), torch.enable_grad(), _holding(folder):
            parts = _split(texts, held_out, validation, chosen.seed)
            _foretell(report, parts, chosen, chosen.batch_on(subject.device, len(rows)))
            sets = _frozen_texts(subject, parts, rows, chosen)
            with subject.frozen(), sets[0].subject.frozen():
                if recipe == "published":
                    return fit_published(cls, subject, over, rows, sets[0], sets[2], chosen)
                begun = None if start is None else start.probe
                probe = _new_probe(rows, sets[0], chosen, over) if start is None else _copied(start, rows)
                objective = LensObjective(probe.to(subject.device), sets[0], sets[1], chosen)
                training = Training(objective, chosen, folder, identity(sets, over, rows, begun))
                if not training.resume() and start is None:
                    begin(probe, sets[0])
                if report:
                    report(describe_time(training))
                training.run(show_progress)
                lens = cls._judged(subject, over, training, sets[2])
        lens._warn()
        return lens

    @classmethod
    def _judged(cls, subject: Subject, over: Over, training: Training, held: FrozenTexts) -> DiffMask:
        """The lens of a training that is done, calibrated on validation texts and judged on held-out ones."""
        probe, objective, settings = training.probe, training.objective, training.settings
        with stage("calibrating and judging the lens"):
            objective.calibrate()
            judged = diagnostics(probe.rows, objective.judge(held), settings.margin)
            found = [d._replace(ok=d.ok and len(held) >= FEWEST_HELD_OUT) for d in judged]
            events = [str(one) for one in class_biases(probe, held)]
        probe.eval().requires_grad_(False)
        return cls(subject, probe, over, settings, found, events, training.history)

    def _warn(self) -> None:
        for remark in self.remarks:
            warnings.warn(remark, stacklevel=3)

    @property
    def remarks(self) -> list[str]:
        """What to know before reading the lens."""
        margin, found = self.settings.margin, self.diagnostics
        over = [d for d in found if d.divergence > margin]
        unsure = [d for d in found if d.divergence <= margin and not d.ok]
        full = [d for d in found if d.kept > ALL_KEPT]
        remarks = {
            f"over the margin of {margin} on held-out texts: do not read them as explanations; fit longer or "
            f"on more texts": over,
            f"judged on fewer than {FEWEST_HELD_OUT} held-out texts, which is not enough to call them ok; "
            f"fit on more texts, or hold out more": unsure,
            "everything is kept, which says nothing about the model; fit longer, on more texts, or with a "
            "larger margin": full,
        }
        return [
            f"{', '.join(site_name(d.site) for d in some)}: {remark}"
            for remark, some in remarks.items()
            if some
        ]

    @torch.no_grad()
    def keep(self, states: dict[int, Tensor], reader: Tensor | None = None) -> Tensor:
        """P(kept) at every site of the lens: (sites, examples, tokens). A causal model needs the position
        where each next token is read, (examples,): `subject.task.reader(batch)`."""
        return self.probe.keep(states, reader)

    def baseline(self, site: int) -> Baseline:
        """What replaces the states that are dropped at one of the lens's sites."""
        row = self.sites.index(site)
        return Baseline(self.probe.baseline(row), self.probe.rows[row].edit)

    def explain(self, texts: Text | Iterable[Text], **options: Any) -> list[Attribution]:
        """Keep probabilities of every token at every site of the lens; options as in `masklens.explain`."""
        from ..methods.explain import explain

        return explain(self.subject, texts, method="diffmask", lens=self, **options)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the weights, what they belong to, and a card for people to read."""
        if not isinstance(self.probe, Probe):
            raise LensError("a lens of the published recipe is for comparison and cannot be saved")
        folder = Path(folder)
        write_lens(folder, self._about(), self.probe, self.subject.module)
        with whole(folder / "README.md") as part:
            part.write_text(card(self), encoding="utf-8")
        return folder

    def _about(self) -> dict[str, Any]:
        assert isinstance(self.probe, Probe)
        return {
            "over": self.over if isinstance(self.over, str) else [tuple(pair) for pair in self.over],
            "rows": [(row.site, row.edit, list(row.reads)) for row in self.probe.rows],
            "places": max((len(table) for table in self.probe.places.values()), default=0),
            "causal": self.probe.causal,
            "settings": self.settings,
            "diagnostics": self.diagnostics,
            "events": self.events,
        }

    @classmethod
    def default(cls, subject: Subject, over: str = "inputs") -> DiffMask:
        """The packaged model's lens over its "inputs" or its "states"."""
        return cls.from_pretrained(HOME / f"lens-{over}", subject)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], subject: Subject) -> DiffMask:
        """Load a lens for the model it was fitted on; another model is refused."""
        about, probe = read_lens(Path(folder), subject)
        return cls(subject, probe, about.over, about.settings, about.diagnostics, about.events)


def _settings(given: dict[str, Any], margin: float, seed: int) -> Settings:
    known = {f.name for f in fields(Settings)}
    unknown = [name for name in given if name not in known]
    if unknown:
        shown = ", ".join(sorted(known)) + did_you_mean(unknown[0], known)
        raise TrainingError(f"no setting {unknown[0]!r}; there are {shown}")
    return replace(Settings(margin=margin, seed=seed), **given)


def _check_fit(
    subject: Subject, over: Over, sites: Sequence[int] | None, start: DiffMask | None, recipe: str
) -> tuple[MaskRow, ...]:
    """The rows of the lens; what cannot be fitted is an error."""
    if recipe not in RECIPES:
        raise TrainingError(f"recipe={recipe!r}; use {' or '.join(map(repr, RECIPES))}")
    if start is not None and start.subject.module is not subject.module:
        raise LensError("start= is a lens of another model; load it with from_pretrained(folder, subject)")
    return rows_for(over, subject.check_sites(sites or subject.sites), subject.sites[0])


@contextmanager
def _holding(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """A fit holds its folder: two that write to one would spoil each other's checkpoints."""
    if folder is None or not is_main():
        yield
        return
    check_folder_writable(folder)
    taken = TrainingError(f"another fit is writing to {folder}; wait for it to end, or use another folder")
    with held(Path(folder) / LOCK, taken):
        yield


Parts = tuple[list[Text], list[Text], list[Text]]
Sets = tuple[FrozenTexts, FrozenTexts, FrozenTexts]
"""to train on, to calibrate on, and to judge on at the end"""


def _frozen_texts(subject: Subject, parts: Parts, rows: Sequence[MaskRow], settings: Settings) -> Sets:
    dtype = PRECISIONS[settings.precision]
    learned_on = subject if dtype is None else subject.in_dtype(dtype)
    needed, memory = needed_sites(rows), _keep_bytes(subject.device)
    train = FrozenTexts(learned_on, parts[0], needed, memory)
    validated, held_out = (FrozenTexts(subject, part, needed, memory // 8) for part in parts[1:])
    return train, validated, held_out


def _split(
    texts: Iterable[Text], held_out: Iterable[Text] | float, validation: Iterable[Text] | None, seed: int
) -> Parts:
    """Texts to train on, to calibrate on, and to judge on at the end."""
    texts = as_texts(texts)
    if not isinstance(held_out, float | int):
        train, held = texts, as_texts(held_out)
    else:
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        count = max(1, round(held_out * len(texts)))
        held, train = [texts[i] for i in order[:count]], [texts[i] for i in order[count:]]
    if not train or not held:
        raise TrainingError(f"{len(texts)} texts are too few to fit a lens and to judge it; give more")
    if validation is not None:
        chosen = as_texts(validation)
        if not chosen:
            raise TrainingError("validation= has no texts; give some, or leave it out")
        return train, chosen, held
    return train, held[::2], held[1::2] or held


def _foretell(report: Callable[[str], object] | None, parts: Parts, settings: Settings, batch: int) -> None:
    """Say what there is to fit on; where nobody listens, warn if it is little."""
    if report:
        counts = [len(part) for part in parts]
        report(describe_texts(counts[0], counts[1], counts[2], settings.steps, batch))
        report(judge_texts(counts[0]))
    elif len(parts[0]) < FEW_TEXTS:
        warnings.warn(judge_texts(len(parts[0])), stacklevel=3)


def _keep_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else KEEP_BYTES


def _new_probe(rows: Sequence[MaskRow], train: FrozenTexts, settings: Settings, over: Over) -> Probe:
    """Gates that are all open. A state that is replaced keeps its place, as a masked word does: over states
    of a tokenised text there is a baseline for each place."""
    causal = train.subject.task.reader(train.batch) is not None
    by_place = over == "states" and train.subject.tokenizer is not None
    places = train.longest - (not causal) if by_place else 0
    with seeded(settings.seed):
        return Probe(rows, train.widths, settings.hidden, places, causal)


def _copied(lens: DiffMask, rows: Sequence[MaskRow]) -> Probe:
    """A copy of a lens's probe to learn on with."""
    if lens.probe.rows != tuple(rows) or not isinstance(lens.probe, Probe):
        raise LensError(
            f"the lens to start from is over {lens.over} at sites {lens.sites}; give one like this"
        )
    return copy.deepcopy(lens.probe).train().requires_grad_(True)


def card(lens: DiffMask) -> str:
    """A page about a lens: what it was fitted on and how good it is at every layer."""
    rows = "\n".join(
        f"| {site_name(d.site)} | {1 - d.kept:.1%} ± {1.96 * d.kept_error:.1%} | {d.divergence:.4f} | "
        f"{d.agreement:.1%} | {'yes' if d.ok else 'NO'} |"
        for d in lens.diagnostics
    )
    settings = "\n".join(f"- {name}: {value}" for name, value in asdict(lens.settings).items())
    events = "\n".join(f"- {event}" for event in lens.events) or "- none"
    remarks = "".join(f"\n- {remark}" for remark in lens.remarks)
    return f"""# A DiffMask lens

Masks over {lens.over}, for {type(lens.subject.module).__name__}. Measured on held-out texts with hard masks
(kept where P(kept) > 0.5). "Can go" is the share of tokens that the lens drops, with its 95% interval; from
layer to layer it is the knowledge curve of the model. "Within" says whether the mean divergence is within the
margin, {lens.settings.margin} nats, on at least {FEWEST_HELD_OUT} texts.

| layer | can go | divergence | agreement | within |
|---|---|---|---|---|
{rows}
{remarks}

## Settings
{settings}

## Classes that are treated differently
{events}
"""


def _load_lens(subject: Subject, options: dict[str, Any]) -> dict[str, Any]:
    """Options with the lens itself where its folder was given."""
    lens = options.get("lens")
    if isinstance(lens, str | os.PathLike):
        return {**options, "lens": DiffMask.from_pretrained(lens, subject)}
    if not isinstance(lens, DiffMask | None):
        raise LensError(f"lens= is a {type(lens).__name__}; give a DiffMask, or the folder of a saved one")
    return options


@register(
    "diffmask",
    summary="Learned masks: what can be replaced without changing the output",
    cost="1.2 with a fitted lens; about 3 x steps without",
    paper="De Cao et al. 2020",
    needs="a fitted lens (lens=), or time",
    merge="max",
    exempt={"zero_effect": "keep probabilities of a model without effect all go to 0 but never reach it"},
    quick={"steps": 10},
    prepare=_load_lens,
    baseline="mask or zero",
)
def diffmask(
    request: Request,
    *,
    lens: DiffMask | None = None,
    margin: float = 0.1,
    steps: int = 500,
    lr: float = 0.1,
    learn_baseline: bool = False,
) -> Tensor:
    """P(kept) of every token. With a lens: predicted from the states (one forward pass). Without: free
    masks learned for each text alone at each site, which prunes more than the model "knows" it can
    (Figure 12b with `learn_baseline`, 12c without).

    Args:
        lens: a fitted lens of this model. The other options are for masks that are learned without one.
        learn_baseline: learn what replaces a dropped state as well, instead of zero.
    """
    if lens is None:
        return diffmask_per_text(request, margin, steps, lr, learn_baseline)
    if lens.subject.module is not request.subject.module:
        raise LensError(
            "this lens was loaded for another subject; load it with from_pretrained(folder, subject)"
        )
    output, states = request.subject.states(request.batch, lens.probe.reads)
    request.note(output, states)
    over = lens.over if isinstance(lens.over, str) else "pairs of sites"
    request.notes.update({i: {"over": over} for i in range(len(request.batch))})
    rows, task = [lens.sites.index(site) for site in request.sites], request.subject.task
    keep = lens.keep(states, task.reader(request.batch))[rows].transpose(0, 1)
    always = request.batch.valid & ~task.removable(request.batch)
    return keep.masked_fill(always[:, None], 1.0)
