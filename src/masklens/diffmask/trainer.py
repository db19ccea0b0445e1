"""The loop that fits a lens: optimiser, biases held at the margin, checkpoints and progress.

A fit goes like this:

- **Warming.** What replaces a dropped state is learned first, under random masks. A prior keeps it
  from saying one class by itself.
- **Closing.** Gates begin open. The bias of each row falls while its hard masks are under the margin
  (`multipliers.Offsets`), and the gate networks learn, from sampled gates, which tokens have to stay open.
- **Calibration.** After the last step each row's bias is set on validation texts (`judging.calibrate`).

Nothing in it depends on the depth of a site.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from ..errors import TrainingError, check_seed
from ..files import FileModel, parse, whole
from ..model.memory import BatchSize, out_of_memory
from ..progress import showing, stage
from ..records.layers import site_name
from .first_states import first_states
from .judging import Judged
from .multipliers import Offsets, Prices
from .networks import MaskRow
from .objective import FEWEST, LensObjective, Terms
from .processes import World, is_main

T = TypeVar("T")
CHECKPOINT = "checkpoint.safetensors"
"""what a fit can be taken up from again"""
WARMING = 0.1
"""the share of the steps for which the baselines alone are learned"""
WEIGHT = 0.3
"""what a divergence as large as the margin costs, in shares of a text kept"""
BASELINE_LR = 0.02
"""learning rate of the baselines, in units of the spread of the states they stand for"""
BATCH = {"cpu": 16, "cuda": 32}
"""texts of a step for each site, where no batch size is given"""
SMALLEST = 128
"""and how many there are at least, for a lens of few sites"""
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Settings:
    """Everything that decides a fit: the same settings and texts give the same lens."""

    margin: float = 0.1
    """allowed divergence, in nats"""
    steps: int = 2000
    batch_size: int | None = None
    """texts of a step, over all sites; by default 16 for each site on a CPU and 32 on a GPU, at least 128"""
    lr: float = 1e-3
    """learning rate of the gate networks (Adam)"""
    hidden: int | None = None
    """hidden units of a gate network; by default a quarter of the model's width, as published"""
    anchor: float = 0.1
    """weight of the baseline's prior while it warms up, beside that of the divergence: an emptied text
    should say what the model says on average. Without it (0, as published) a baseline can come to say one
    class by itself, and texts of that class keep nothing"""
    precision: str = "float32"
    """or "bfloat16": a lens learns on a copy of the model in bfloat16 and is judged on the model itself"""
    seed: int = 0
    evaluate_every: int = 200
    """steps between evaluations on validation texts, at which a checkpoint is written"""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.margin <= 0:
            raise TrainingError(f"margin is {self.margin}; it must be above 0")
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.precision not in PRECISIONS:
            raise TrainingError(f"precision={self.precision!r}; use {' or '.join(map(repr, PRECISIONS))}")

    def rate(self, step: int) -> float:
        """The learning rate as a share of its peak: up over 50 steps, down to 0.1 over the last 30%."""
        return min(1.0, (step + 1) / 50, 0.1 + 3 * (1 - (step + 1) / self.steps))

    def warming(self, step: int) -> bool:
        return step < WARMING * self.steps

    def batch_on(self, device: torch.device, sites: int) -> int:
        return self.batch_size or max(SMALLEST, sites * BATCH.get(device.type, BATCH["cpu"]))


class Diagnostic(NamedTuple):
    """How a lens does at one site on held-out texts, with hard masks (kept where P(kept) > 0.5)."""

    site: int
    divergence: float
    kept: float
    """share of tokens kept"""
    agreement: float
    """share of texts with the same prediction"""
    kept_error: float
    """standard error of the share kept"""
    ok: bool
    """whether the divergence is within the margin, and was measured on enough texts"""


class Diagnostics(list[Diagnostic]):
    """How a lens does at each of its sites."""

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each site."""
        import pandas

        names = [site_name(one.site) for one in self]
        return pandas.DataFrame(self, columns=Diagnostic._fields, index=pandas.Index(names, name="layer"))


def diagnostics(rows: Sequence[MaskRow], judged: Sequence[Judged], margin: float) -> list[Diagnostic]:
    return [
        Diagnostic(row.site, j.divergence, j.kept, j.agreement, j.kept_error, j.divergence <= margin)
        for row, j in zip(rows, judged, strict=True)
    ]


class Training:
    """A run of the loop; it can be saved and taken up again.

    training = Training(objective, Settings(margin=0.1), folder)
    training.run()
    """

    LOOK = 10
    """after how many steps the loss is looked at, for which a GPU has to be waited for"""

    def __init__(
        self,
        objective: LensObjective,
        settings: Settings,
        folder: str | os.PathLike[str] | None = None,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.objective, self.settings, self.identity = objective, settings, dict(identity or {})
        self.file = None if folder is None else Path(folder) / CHECKPOINT
        self.probe = objective.probe
        self.device = self.probe.gate(0).bias.device
        self.processes = World(self.device)
        self.parameters = list(self.probe.parameters())
        self.optimizer = _optimizer(objective, settings)
        self.offsets = Offsets(self.probe, settings.margin, settings.steps, objective.hard)
        self.prices = Prices(len(self.probe.rows), self.device)
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.at_once = BatchSize(len(self.probe.rows), 1)
        """how many rows are computed together; fewer once memory did not suffice"""
        self._lost = torch.tensor(False, device=self.device)

    def run(self, show_progress: bool = False) -> None:
        """Train to the last step."""
        steps = self.settings.steps
        self._agree()
        with (
            showing(show_progress and is_main()),
            stage("fitting", steps, self.step) as update,
            fast_products(),
            self.watched(),
        ):
            while self.step < steps:
                terms = self._one_step()
                self.step += 1
                if self.step % self.LOOK == 0:
                    self._check_loss()
                    update(completed=self.step, description=_now(terms, self.history))
                if self.step % self.settings.evaluate_every == 0 or self.step == steps:
                    self._evaluate()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Gradients are also computed for the biases, which the prices are set by."""
        try:
            for bias in self.probe.biases:
                bias.requires_grad_(True)
            yield
        finally:
            for bias in self.probe.biases:
                bias.requires_grad_(False)

    def _check_loss(self) -> None:
        if self._lost:
            raise TrainingError(f"the loss was not finite before step {self.step}; lower lr, or use float32")

    def loss(self, terms: Terms, warming: bool = False, rows: slice = slice(None)) -> Tensor:
        """Eq. 3 summed over rows, and the baseline's prior. Hard masks have no gradient to the gates: through
        them the baselines learn."""
        moved = terms.divergence + terms.hard / 2 + self.settings.anchor * terms.emptied
        cost = WEIGHT / self.settings.margin * moved
        return (cost if warming else self.prices.values[rows] * terms.kept + cost).sum()

    def _one_step(self) -> Terms:
        rate, warming = self.settings.rate(self.step), self.settings.warming(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        terms, need = self.gradients(self.step, warming)
        self._lost.logical_or_(~torch.isfinite(self.loss(terms, warming)))
        if not warming:
            self._hold_margin(terms, need, rate)
        self._share_gradients()
        self.optimizer.step()
        return terms

    def gradients(self, step: int, warming: bool = False) -> tuple[Terms, Tensor]:
        """Compute a step's gradients. Returns its terms, and how strongly each row's gates are needed open.

        Rows that do not fit into memory together are computed in halves, in later steps too. This changes the
        gradients by rounding alone.
        """
        self.optimizer.zero_grad()
        found = []
        for values, slopes in self._in_parts(partial(self._of_rows, step, warming)):
            found.append(values)
            for p, slope in zip(self.parameters, slopes, strict=True):
                if slope is not None:
                    p.grad = slope if p.grad is None else p.grad + slope
        *terms, need = torch.cat(found, dim=1)
        return Terms(*terms), need

    def _in_parts(self, work: Callable[[list[int]], T]) -> Iterator[T]:
        """The work on all rows, as many at a time as fit into memory."""
        with _explaining_lack_of_memory(self.objective.per_row):
            for part in self.at_once.cut([1] * len(self.probe.rows)):
                yield from (done for _, done in self.at_once.within_memory(work, part))

    def _of_rows(self, step: int, warming: bool, rows: list[int]) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The terms and the need of some rows, (terms + 1, rows), and the gradients of all parameters."""
        terms = self.objective.terms(step, self.processes.rank, self.processes.size, warming, rows)
        here, count = slice(rows[0], rows[-1] + 1), len(self.parameters)
        loss, biases = self.loss(terms, warming, here), [] if warming else self.probe.biases[here]
        grown = torch.autograd.grad(terms.kept.sum(), biases, retain_graph=True) if biases else ()
        slopes = torch.autograd.grad(loss, [*self.parameters, *biases], allow_unused=True)
        need = torch.zeros_like(loss).expand(len(rows))
        if biases:
            pushed = [torch.zeros_like(loss) if one is None else one for one in slopes[count:]]
            need = self.prices.values[here] * torch.stack(grown) - torch.stack(pushed)
        return torch.stack([one.detach().float() for one in (*terms, need)]), slopes[:count]

    def _hold_margin(self, terms: Terms, need: Tensor, rate: float) -> None:
        """What follows from a step for the biases and the prices."""
        seen = torch.stack([terms.hard, need, terms.slope])
        hard, need, slope = self.processes.summed(seen) / self.processes.size
        self.prices.update(need, slope)
        self.offsets.update(hard, rate)

    def _share_gradients(self) -> None:
        """Average gradients over processes; a parameter unused in one process counts as zero there."""
        if self.processes.size == 1:
            return
        for p in self.parameters:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = self.processes.summed(grad) / self.processes.size

    def _evaluate(self) -> None:
        """Judge on validation texts and write a checkpoint."""
        self._check_loss()
        self._agree()
        found = diagnostics(self.probe.rows, self.objective.judge(), self.settings.margin)
        self.history.append({"step": self.step, "rows": [d._asdict() for d in found]})
        if self.file and is_main():
            self.save()

    @torch.no_grad()
    def _agree(self) -> None:
        """Give all processes the main one's weights: rounding must not make them differ."""
        if self.processes.size > 1:
            for tensor in (*self.probe.state_dict().values(), *self._controls().values()):
                tensor.copy_(self.processes.from_main(tensor))

    def save(self) -> None:
        """Write a checkpoint; the file is whole or absent."""
        from safetensors.torch import save

        assert self.file is not None
        tensors = {f"probe.{k}": v for k, v in self.probe.state_dict().items()}
        tensors |= {f"optimizer.{i}.{k}": v for i, k, v in self._optimizer_tensors()}
        tensors |= self._controls()
        about = Checkpoint(step=self.step, history=self.history, made_for=self._made_for)
        held = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
        with whole(self.file) as part:
            part.write_bytes(save(held, metadata={"training": about.model_dump_json()}))

    def resume(self) -> bool:
        """Take up the checkpoint in the folder, if there is one; False if there is none."""
        if self.file is None or not self.file.exists():
            return False
        about, tensors = _read_checkpoint(self.file, self.device)
        _check_same(about.made_for, self._made_for, self.file)
        if about.step > self.settings.steps:
            raise _damaged(self.file, f"it is of step {about.step}, after the last")
        try:
            self._take_up(tensors)
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise _damaged(self.file, f"its tensors are not those of this fit ({error!r:.80})") from error
        self.step, self.history = about.step, about.history
        return True

    def _take_up(self, tensors: Mapping[str, Tensor]) -> None:
        for name, control in self._controls().items():
            control.copy_(tensors[name])
        self.probe.load_state_dict(_under(tensors, "probe."))
        for name, value in _under(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            owner = self.parameters[int(index)]
            if key != "step" and value.shape != owner.shape:
                raise ValueError(f"{name} has the shape {tuple(value.shape)}")
            self.optimizer.state[owner][key] = value.cpu() if key == "step" else value

    @property
    def _made_for(self) -> dict[str, Any]:
        return {**asdict(self.settings), **self.identity}

    def _controls(self) -> dict[str, Tensor]:
        """What the margin is held with, beside the biases."""
        return {"divergence": self.offsets.divergence, "need": self.prices.need, "slope": self.prices.slope}

    def _optimizer_tensors(self) -> Iterator[tuple[int, str, Tensor]]:
        for i, p in enumerate(self.parameters):
            for key, value in self.optimizer.state.get(p, {}).items():
                yield i, key, torch.as_tensor(value)


def _optimizer(objective: LensObjective, settings: Settings) -> torch.optim.Optimizer:
    """Adam; the baselines' rates are in units of the spread of the states they stand for."""
    probe, first = objective.probe, first_states(objective.train)
    groups = [{"params": list(probe.gates.parameters()), "peak": settings.lr}]
    for i, row in enumerate(probe.rows):
        learned = [probe.baselines[i], *([probe.places[str(i)]] if str(i) in probe.places else [])]
        groups.append({"params": learned, "peak": BASELINE_LR * first.spread(row.edit)})
    return torch.optim.Adam(groups, lr=settings.lr, betas=(0.9, 0.99))


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


class Checkpoint(FileModel):
    """How far a fit is, as a checkpoint says it."""

    step: Annotated[int, Field(ge=0)]
    history: list[dict[str, Any]]
    made_for: dict[str, Any]
    """the settings, and what they were used on"""


def _read_checkpoint(file: Path, device: torch.device) -> tuple[Checkpoint, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt", device=str(device)) as f:
            about = (f.metadata() or {}).get("training", "")
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _damaged(file, " ".join(str(error).split())[:200]) from error
    bad = [name for name, value in tensors.items() if not torch.isfinite(value).all()]
    if bad:
        raise _damaged(file, f"{bad[0]} has values that are no finite numbers")
    return parse(Checkpoint, about.encode(), file, TrainingError), tensors


def _damaged(file: Path, why: str) -> TrainingError:
    return TrainingError(f"the checkpoint {file} is damaged: {why}; remove it to begin anew")


def _check_same(saved: Mapping[str, Any], given: Mapping[str, Any], file: Path) -> None:
    for name, value in given.items():
        if saved.get(name) != value:
            raise TrainingError(
                f"{file} was written with {name} {saved.get(name)!r}, this run has {value!r}; go on with the "
                f"same, or use another folder"
            )


@contextmanager
def _explaining_lack_of_memory(texts: int) -> Iterator[None]:
    """Say what to do where memory does not suffice, not even for one row after the other."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        smaller = "shorter texts" if texts == FEWEST else "a smaller batch_size, or shorter texts"
        raise TrainingError(
            f"a step needs more memory than there is, even with one layer after the other ({texts} texts "
            f"each); give {smaller}"
        ) from error


@contextmanager
def fast_products() -> Iterator[None]:
    """Matrix products of float32 on a GPU's fast units, with the 10 bits of TF32: enough for gates that learn
    from noise. A lens is calibrated and judged in full float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _now(terms: Terms, history: Sequence[Mapping[str, Any]]) -> str:
    text = f"fitting: kept {terms.kept.mean().item():.0%}  divergence {terms.hard.mean().item():.3f}"
    over = [site_name(row["site"]) for row in history[-1]["rows"] if not row["ok"]] if history else []
    return text + (f"  over the margin: {', '.join(over)}" if over else "")
