"""DiffMask (De Cao et al. 2020): learn which inputs or hidden states a model does not need.

    lens = DiffMask.fit(subject, texts, over="inputs", margin=0.1)
    lens.diagnostics                       # per site, on held-out texts, with hard masks
    lens.explain(texts)                    # keep probabilities, sites x tokens
    lens.save_pretrained("lens"); DiffMask.from_pretrained("lens", subject)

Also the forms without amortisation, for single texts: the methods `diffmask` (without a lens) and
`reinforce`.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..attribution import Attribution, Text
from ..errors import LensError, MethodError, TrainingError
from ..files import whole
from ..forecast import FEW_TEXTS, describe_texts, describe_time, judge_texts
from ..lagrangian import Diagnostic, Settings, Training
from ..objectives import FrozenTexts, LensObjective, ReinforceObjective, TextObjective
from ..probes import COMPARED, Over, Probe, Row, opened, reads_of, rows_for, with_members
from ..subject import Subject
from ..tasks import Pointing
from . import Request, register
from .baselines import absent_state, mask_or_zero
from .favoured import favoured

if TYPE_CHECKING:
    from ..evaluation.verifying import Verification
    from ..evaluation.views import Baseline


POINTED_FIT: dict[str, Any] = {"slack": 0.15, "baseline_lr": 3e-3}
"""settings of a fit whose deepest site begins from answers, unless others are given"""


class DiffMask:
    """A fitted lens: probes that tell, from the states of a model, what it can do without."""

    def __init__(
        self,
        subject: Subject,
        probe: Probe,
        over: Over,
        settings: Settings,
        diagnostics: Sequence[Diagnostic] = (),
        events: Sequence[str] = (),
        history: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.subject, self.probe, self.over, self.settings = subject, probe, over, settings
        self.diagnostics, self.events, self.history = list(diagnostics), list(events), list(history)

    @property
    def sites(self) -> tuple[int, ...]:
        return tuple(row.site for row in self.probe.rows)

    @classmethod
    def fit(
        cls,
        subject: Subject,
        texts: Sequence[Text],
        over: Over = "inputs",
        margin: float = 0.1,
        seed: int = 0,
        sites: Sequence[int] | None = None,
        held_out: Sequence[Text] | float = 0.1,
        validation: Sequence[Text] | None = None,
        learn_baseline: bool = True,
        by_place: bool | None = None,
        gate: str = "inward",
        hidden: int | None = None,
        compared: int = COMPARED,
        sums: bool = True,
        members: int = 1,
        pointed: bool = False,
        context: bool = False,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = True,
        keep_bytes: int | None = None,
        start: DiffMask | None = None,
        show_progress: bool = False,
        report: Callable[[str], object] | None = None,
        **settings: Any,
    ) -> DiffMask:
        """Learn masks over a corpus so that outputs move by at most `margin` nats on average (Eqs. 1 to 3).

        Args:
            over: "inputs" (which tokens are known to be unneeded, judged from the states up to each
                site), "states" (which states of a site are needed), or pairs (edited site, read site).
            held_out: texts for `diagnostics`, or the share of `texts` to set aside.
            validation: texts that training may look at, to recover, to stop and to settle; by default half of
                the held-out ones, which are then not used for `diagnostics`.
            learn_baseline: learn what replaces a dropped state; otherwise it stays at its first value.
            by_place: whether what replaces a state has a part of its own for each place in a text. By default
                so for the states of a model with a tokenizer: a masked input keeps its position, and so
                should a masked state.
            gate: "inward" (gates that never saturate), or as in the paper "tanh" or "plain".
            compared: of each gate network's hidden units, how many see a token beside the others of its text;
                0 as in the paper.
            sums: whether over inputs what the sites say adds up to one gate; else each site has gates of its
                own and they multiply, as in the paper.
            members: how many gate networks each site has; the paper has 1. They share the texts of a step
                between them, learn apart from each other, and their keep probabilities are averaged: lenses
                with other seeds then say more nearly the same.
            pointed: for answers to questions, over inputs: the deepest site also reads which tokens are the
                model's answer and which the question, and begins with all but the answer dropped, with
                slack=0.15 and baseline_lr=0.003 unless given. For margins that leave room to drop nearly all
                of a text, such as 1.0; the paper has no such thing.
            context: whether gates also read the text as a whole at their site: its first and its last state
                and the mean of all. They can then put together what the model has not yet put together
                there; the paper's see a token at a time.
            folder: where checkpoints go; with `resume` an interrupted fit goes on from there.
            keep_bytes: memory for frozen states; by default 2 GB, or a third of a GPU's free memory.
            start: a lens of the same model, form and sites to begin from, such as one with a smaller margin;
                its gates and baselines are taken as they are, whatever is said of the form of new ones.
            report: is told beforehand how many texts there are, if they are enough, and how long it takes.
            settings: any field of `lagrangian.Settings`.
        """
        if start is not None or not learn_baseline:  # there is no baseline to learn first
            settings["warm_until"] = 0.0
        if start is not None:  # no row begins with nearly everything dropped
            settings.setdefault("pointed_multiplier", settings.get("multiplier", Settings.multiplier))
        settings = {**POINTED_FIT, **settings} if pointed else settings
        chosen = _settings(settings, margin, seed)
        train_texts, validation_texts, held_texts = _split(texts, held_out, validation, seed)
        _foretell(report, (len(train_texts), len(validation_texts), len(held_texts)), chosen)
        rows = rows_for(over, subject.check_sites(sites or subject.sites))
        knows = _check_pointed(pointed, over, sums, rows, subject) if start is None else start.probe.pointed
        reads = reads_of(rows, knows)
        memory = _keep_bytes(subject.device) if keep_bytes is None else keep_bytes
        learned_on = subject.in_dtype(torch.bfloat16) if chosen.mixed_precision == "bf16" else subject
        train = FrozenTexts(learned_on, train_texts, reads, memory)
        validated = FrozenTexts(subject, validation_texts, reads, memory // 8)
        held = FrozenTexts(subject, held_texts, reads, memory // 8)
        if start is None:
            places = train.longest - 1 if _by_place(by_place, over, subject) else 0
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                probe = Probe(
                    rows,
                    train.widths,
                    over == "inputs",
                    hidden,
                    gate,
                    learn_baseline,
                    places,
                    compared=compared,
                    sums=sums,
                    members=members,
                    pointed=knows,
                    context=context,
                )
            probe.to(subject.device)
            _start(probe, subject, train)
        else:
            probe = _probe_of(start, rows, learn_baseline)
        objective = LensObjective(probe, train, validated, chosen)
        with subject.frozen(), learned_on.frozen():
            training = Training(objective, chosen, folder)
            if resume:
                training.resume()
            if report:
                report(describe_time(training))
            training.run(show_progress)
            events = training.events + _settled(training, objective)
            diagnostics = objective.diagnose(training.multipliers.values.tolist(), held)
            events += [str(one) for one in favoured(probe, held)]
        lens = cls(
            subject, probe.eval().requires_grad_(False), over, chosen, diagnostics, events, training.history
        )
        lens._warn()
        return lens

    def _warn(self) -> None:
        bad = [d.site for d in self.diagnostics if not d.ok]
        if bad:
            warnings.warn(
                f"sites {bad} are over their margin of {self.settings.margin} on held-out texts: "
                f"do not read them as explanations; fit longer or on more texts",
                stacklevel=3,
            )

    @torch.no_grad()
    def keep(self, states: dict[int, Tensor], valid: Tensor) -> Tensor:
        """P(kept) at every row: (rows, examples, tokens); valid (examples, tokens) bool."""
        return self.probe.log_keep(states, valid).exp()

    def baseline(self, site: int) -> Baseline:
        """What replaces the states that are dropped at one of the lens's sites."""
        from ..evaluation.views import Baseline

        row = self.sites.index(site)
        return Baseline(self.probe.baseline(row), self.probe.rows[row].edit)

    def verify(
        self,
        attributions: Sequence[Attribution],
        keep: float = 0.5,
        site: int | None = None,
        margin: float | None = None,
        guard: float | None = None,
        same_prediction: bool = True,
    ) -> list[Verification]:
        """Drop what the lens calls unneeded, put its baseline there, and run the model again; options as in
        `masklens.verify`."""
        from ..evaluation.verifying import verify

        return verify(self.subject, attributions, keep, self, site, margin, guard, same_prediction)

    def explain(self, texts: Text | Sequence[Text], **options: Any) -> list[Attribution]:
        """Keep probabilities of every token at every site of the lens; options as in `masklens.explain`."""
        from ..explaining import explain

        return explain(self.subject, texts, method="diffmask", lens=self, **options)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the weights, what they belong to, and a card for people to read."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.contiguous().cpu() for name, value in self.probe.state_dict().items()}
        tensors["fingerprint"] = fingerprint(self.subject.module)
        with whole(folder / "lens.safetensors") as part:
            save_file(tensors, part)
        with whole(folder / "lens.json") as part:
            part.write_text(json.dumps(self._about(), indent=1))
        with whole(folder / "README.md") as part:
            part.write_text(card(self))
        return folder

    def _about(self) -> dict[str, Any]:
        gate = self.probe.gate(0)
        return {
            "over": self.over if isinstance(self.over, str) else [list(pair) for pair in self.over],
            "sites": list(self.sites),
            "hidden": gate.hidden.direction.shape[1],
            "gate": gate.gate,
            "shut": self.probe.limits[0],
            "compared": gate.compared,
            "sums": self.probe.sums,
            "members": self.probe.members,
            "pointed": self.probe.pointed,
            "context": self.probe.context,
            "places": max((len(table) for table in self.probe.places.values()), default=0),
            "settings": asdict(self.settings),
            "diagnostics": [d._asdict() for d in self.diagnostics],
            "events": self.events,
        }

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], subject: Subject) -> DiffMask:
        """Load a lens for the model it was fitted on; another model is refused."""
        from safetensors.torch import load_file

        folder = Path(folder)
        if not (folder / "lens.json").exists() or not (folder / "lens.safetensors").exists():
            raise LensError(f"{folder} does not hold a lens (lens.json and lens.safetensors)")
        about = json.loads((folder / "lens.json").read_text())
        tensors = with_members(load_file(folder / "lens.safetensors", device=str(subject.device)))
        _same_model(tensors.pop("fingerprint"), subject.module, folder)
        over = about["over"] if isinstance(about["over"], str) else [tuple(pair) for pair in about["over"]]
        rows = rows_for(over, about["sites"])
        widths = {row.edit: tensors[f"baselines.{row.edit}"].shape[0] for row in rows}
        probe = Probe(
            rows,
            _read_widths(rows, widths, tensors),
            over == "inputs",
            about["hidden"],
            about.get("gate") or ("plain" if about["bounded"] is None else "tanh"),  # older lenses
            places=about.get("places", 0),
            shut=about.get("shut", -opened(len(rows), over == "inputs")),  # older lenses: as far as open
            compared=about.get("compared", 0),
            sums=about.get("sums", False),
            members=about.get("members", 1),
            pointed=about.get("pointed", False),
            context=about.get("context", False),
        )
        probe.to(subject.device).load_state_dict(tensors)
        return cls(
            subject,
            probe.eval().requires_grad_(False),
            over,
            Settings(**{"anchor": 0.0, "straight": False, **about["settings"]}),  # older lenses
            [Diagnostic(**d) for d in about["diagnostics"]],
            about["events"],
        )


def _settings(given: dict[str, Any], margin: float, seed: int) -> Settings:
    known = {f.name for f in fields(Settings)}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TrainingError(f"no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    if margin <= 0:
        raise TrainingError(f"margin is {margin}; it must be above 0")
    return replace(Settings(margin=margin, seed=seed), **given)


def _split(
    texts: Sequence[Text], held_out: Sequence[Text] | float, validation: Sequence[Text] | None, seed: int
) -> tuple[list[Text], list[Text], list[Text]]:
    """Texts to train on, to watch training with, and to judge on at the end."""
    texts = list(texts)
    if not isinstance(held_out, float | int):
        train, held = texts, list(held_out)
    else:
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        count = max(1, round(held_out * len(texts)))
        held, train = [texts[i] for i in order[:count]], [texts[i] for i in order[count:]]
    if not train or not held:
        raise TrainingError(f"{len(texts)} texts are too few to fit a lens and to judge it; give more")
    if validation is not None:
        return train, list(validation), held
    return train, held[::2], held[1::2] or held


def _foretell(
    report: Callable[[str], object] | None, counts: tuple[int, int, int], settings: Settings
) -> None:
    """Say what there is to fit on; where nobody listens, warn if it is little."""
    if report:
        report(describe_texts(*counts, settings))
        report(judge_texts(counts[0]))
    elif counts[0] < FEW_TEXTS:
        warnings.warn(judge_texts(counts[0]), stacklevel=3)


def _keep_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else 2 * 10**9


def _start(probe: Probe, subject: Subject, train: FrozenTexts) -> None:
    """Standardise the gates' inputs; baselines begin at the mask token's embedding, or at the mean state, of
    all tokens and of each place."""
    batch, (_, states) = train.draw(list(range(min(256, len(train)))))
    probe.fit_statistics(states, batch.valid)
    mask = getattr(subject.tokenizer, "mask_token_id", None)
    with torch.no_grad():
        for name, edit in {probe.baseline_name(i): row.edit for i, row in enumerate(probe.rows)}.items():
            start = states[edit][batch.valid].mean(0)
            if edit == subject.sites[0] and mask is not None:
                start = subject.points[edit].module(torch.tensor([[mask]], device=subject.device))[0, 0]
            probe.baselines[name].copy_(start)
            if str(edit) in probe.places:
                probe.places[str(edit)].copy_(
                    _place_means(states[edit], batch.valid, probe.places[str(edit)])
                )


def _place_means(state: Tensor, valid: Tensor, like: Tensor) -> Tensor:
    """How the mean state of each place, from the second on, differs from that of all; 0 where none was."""
    count = valid[:, 1:].sum(0)[:, None]  # (tokens, 1)
    total = (state[:, 1:].float() * valid[:, 1:, None]).sum(0)
    found = torch.where(count > 0, total / count.clamp(min=1) - state[valid].float().mean(0), 0.0)
    return torch.cat([found, found.new_zeros(max(0, len(like) - len(found)), found.shape[1])])[: len(like)]


def _probe_of(lens: DiffMask, rows: Sequence[Row], learn_baseline: bool) -> Probe:
    """A copy of a lens's probe to learn on with."""
    if lens.probe.rows != tuple(rows):
        raise LensError(
            f"the lens to start from is over {lens.over} at sites {lens.sites}; give one like this"
        )
    probe = copy.deepcopy(lens.probe).train().requires_grad_(True)
    for part in (probe.baselines, probe.places):
        part.requires_grad_(learn_baseline)
    return probe


def _by_place(given: bool | None, over: Over, subject: Subject) -> bool:
    return (over == "states" and subject.tokenizer is not None) if given is None else given


def _check_pointed(given: bool, over: Over, sums: bool, rows: Sequence[Row], subject: Subject) -> bool:
    """Only the last site of a model has read all that its output is made of."""
    deepest = rows[-1].site == subject.sites[-1]
    if given and not (over == "inputs" and sums and deepest and isinstance(subject.task, Pointing)):
        raise TrainingError(
            "pointed=True is for question answering, over inputs, with sums=True and the deepest site, "
            f"{subject.sites[-1]}; this is {type(subject.task).__name__}, over {over}, with sums={sums} and "
            f"sites up to {rows[-1].site}"
        )
    return given


@torch.no_grad()
def _settled(training: Training, objective: LensObjective) -> list[str]:
    """Settle the last weights and the best ones met on the way, and go on with the sparser; what was done."""
    events = objective.settle()
    if not training.best or not events:
        return events

    def kept() -> float:
        return sum(j.kept for j in objective.judge(range(objective.groups)))

    last = {name: value.clone() for name, value in objective.module.state_dict().items()}
    before = kept()
    objective.module.load_state_dict(training.best)
    other = objective.settle()
    if kept() < before:
        return ["put back to the sparsest weights that kept all margins", *other]
    objective.module.load_state_dict(last)
    return events


def fingerprint(module: nn.Module) -> Tensor:
    """Mean and spread of every parameter, (parameters, 2): tells models apart, not number formats."""
    return torch.stack(
        [
            torch.stack([p.detach().float().mean(), p.detach().float().abs().mean()]).cpu()
            for p in module.parameters()
        ]
    )


def _same_model(saved: Tensor, module: nn.Module, folder: Path) -> None:
    here = fingerprint(module)
    if saved.shape != here.shape or not torch.allclose(saved.cpu(), here, rtol=1e-2, atol=1e-4):
        raise LensError(
            f"the lens in {folder} was fitted on another model than this {type(module).__name__}; "
            f"load the model it was fitted on, or fit a lens for this one"
        )


def _read_widths(rows: Sequence[Any], known: dict[int, int], tensors: dict[str, Tensor]) -> dict[int, int]:
    """Widths of all sites a probe reads, from the sizes of its networks' inputs."""
    widths = dict(known)
    for i, row in enumerate(rows):
        missing = [site for site in row.reads if site not in widths]
        if missing:
            total = tensors[f"gates.{i}.mean"].shape[0]
            widths[missing[0]] = total - sum(widths.get(site, 0) for site in row.reads)
    return widths


def card(lens: DiffMask) -> str:
    """A page about a lens: what it was fitted on and how good it is at every site."""
    rows = "\n".join(
        f"| {d.site} | {d.divergence:.4f} | {d.kept:.3f} | {d.agreement:.3f} | {d.multiplier:.2f} | "
        f"{'yes' if d.ok else 'NO'} |"
        for d in lens.diagnostics
    )
    settings = "\n".join(f"- {name}: {value}" for name, value in asdict(lens.settings).items())
    settings += f"\n- gate: {lens.probe.gate(0).gate}\n- by_place: {bool(lens.probe.places)}"
    settings += f"\n- compared: {lens.probe.gate(0).compared}\n- sums: {lens.probe.sums}"
    settings += f"\n- members: {lens.probe.members}\n- pointed: {lens.probe.pointed}"
    settings += f"\n- context: {lens.probe.context}"
    events = "\n".join(f"- {event}" for event in lens.events) or "- none"
    return f"""# A DiffMask lens

Masks over {lens.over}, for {type(lens.subject.module).__name__}. Judged on held-out texts with hard masks
(kept where P(kept) > 0.5); "within" says whether the divergence is within the margin, {lens.settings.margin}.

| site | divergence | share kept | agreement | multiplier | within |
|---|---|---|---|---|---|
{rows}

## Settings
{settings}

## What happened in training
{events}
"""


@register(
    "diffmask",
    summary="Learned masks: what can be replaced without changing the output",
    cost="1.2 with a fitted lens; about 3 x steps without",
    paper="De Cao et al. 2020",
    needs="a fitted lens (lens=), or time",
    merge="max",
    exempt={"zero_effect": "keep probabilities of a model without effect all go to 0 but never reach it"},
    quick={"steps": 10},
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
    (Figure 12b with `learn_baseline`, 12c without)."""
    if lens is not None:
        return _with_lens(request, lens)
    warnings.warn(
        "diffmask without lens= learns masks for each text alone: slow, and prone to drop what the model "
        "uses; fit a lens with masklens.DiffMask.fit",
        stacklevel=2,
    )
    masks = [
        _free_masks(request, site, TextObjective, margin, steps, lr, learn_baseline) for site in request.sites
    ]
    return torch.stack(masks, dim=1)


@register(
    "reinforce",
    summary="The objective of diffmask without a lens, by REINFORCE with a moving-average baseline",
    cost="steps",
    paper="Williams 1992; De Cao et al. 2020, Table 2",
    needs="time",
    merge="max",
    exempt={"zero_effect": "keep probabilities of a model without effect go to 0 but never reach it"},
    quick={"steps": 10},
)
def reinforce(request: Request, *, margin: float = 0.1, steps: int = 1000, lr: float = 0.1) -> Tensor:
    """P(kept) of every token, learned for each text alone with Bernoulli masks."""
    masks = [
        _free_masks(request, site, ReinforceObjective, margin, steps, lr, False) for site in request.sites
    ]
    return torch.stack(masks, dim=1)


def _with_lens(request: Request, lens: DiffMask) -> Tensor:
    if lens.subject.module is not request.subject.module:
        raise LensError(
            "this lens was loaded for another subject; load it with from_pretrained(folder, subject)"
        )
    missing = [site for site in request.sites if site not in lens.sites]
    if missing:
        raise MethodError(f"the lens has no site {missing[0]}; it has {lens.sites}")
    output, states = request.subject.states(request.batch, lens.probe.reads)
    request.note(output)
    over = lens.over if isinstance(lens.over, str) else "pairs of sites"
    request.notes.update({i: {"over": over} for i in range(len(request.batch))})
    rows = [lens.sites.index(site) for site in request.sites]
    return lens.keep(states, request.batch.valid)[rows].transpose(0, 1)


def _free_masks(
    request: Request,
    site: int,
    objective: type[TextObjective],
    margin: float,
    steps: int,
    lr: float,
    learn_baseline: bool,
) -> Tensor:
    """(examples, tokens)"""
    state = request.subject.states(request.batch, [site])
    request.note(state.output)
    default = mask_or_zero(request) if learn_baseline else "zero"
    baseline = absent_state(request, site, state.states[site], default)
    noise = request.draws(1, torch.rand)
    made = objective(request.subject, request.batch, site, margin, noise, baseline, learn_baseline)
    settings = Settings(
        margin=margin,
        steps=steps,
        lr=lr,
        baseline_lr=lr / 10,
        relative=False,
        multiplier=1.0,
        multiplier_lr=0.1,
        multiplier_max=200.0,
        sharpen_from=0.5,
        power=0.5,
        centered=False,
        warmup=0,
        warm_until=0.0,
        clip=0.0,
        shared=False,
        evaluate_every=25,
        seed=request.seed,
    )
    with torch.enable_grad():
        training = Training(made, settings)
        training.run()
    _within_margin(request, training, site)
    return torch.where(request.batch.valid, made.keep_probability().detach(), 0.0)


def _within_margin(request: Request, training: Training, site: int) -> None:
    """Texts that end over the margin go back to their last masks within it; the record says so."""
    for i, d in enumerate(training.objective.diagnose(training.multipliers.values.tolist())):
        if not d.ok:
            training.restore(i)
            request.notes.setdefault(i, {})[f"restored@{site}"] = True
