"""A lens in a folder: lens.json says what it is, lens.safetensors holds its weights; both are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..errors import LensError, TrainingError
from ..files import FileModel, parse, read_bytes, whole
from ..model.subject import Subject
from .networks import MaskRow, Probe, rows_for
from .trainer import Diagnostic, Settings

ABOUT, WEIGHTS = "lens.json", "lens.safetensors"
LARGEST_ABOUT = 10**7
"""bytes of lens.json"""
Site = Annotated[int, Field(ge=0, le=10**5)]


class SavedLens(FileModel):
    """What a lens is, apart from its weights."""

    over: Literal["inputs", "states"] | list[tuple[Site, Site]]
    rows: Annotated[list[tuple[Site, Site, list[Site]]], Field(min_length=1)]
    """site, edit and reads of every row of the probe"""
    places: Annotated[int, Field(ge=0, le=10**6)]
    causal: bool = False
    """whether gates read the position where the next token is read"""
    settings: Settings
    diagnostics: list[Diagnostic]
    events: list[str]
    weights: str | None = None
    """SHA-256 of the file of weights"""


def write_lens(folder: Path, about: Mapping[str, Any], probe: Probe, module: nn.Module) -> None:
    """Write both files; the one that says what the other holds comes last."""
    from safetensors.torch import save

    tensors = {name: value.contiguous().cpu() for name, value in probe.state_dict().items()}
    content = save({**tensors, "fingerprint": fingerprint(module)})
    lens = SavedLens(**about, weights=hashlib.sha256(content).hexdigest())
    with whole(folder / WEIGHTS) as part:
        part.write_bytes(content)
    with whole(folder / ABOUT) as part:
        part.write_text(lens.model_dump_json(indent=1), encoding="utf-8")


def read_lens(folder: Path, subject: Subject) -> tuple[SavedLens, Probe]:
    """Read a lens for the model it was fitted on; a damaged one, and another model, are refused."""
    if not folder.is_dir():
        raise LensError(f"no such folder: {folder}; give one that holds a lens")
    if not (folder / ABOUT).exists() or not (folder / WEIGHTS).exists():
        raise LensError(f"{folder} does not hold a lens ({ABOUT} and {WEIGHTS})")
    about = parse(SavedLens, read_bytes(folder / ABOUT, LensError, LARGEST_ABOUT), folder / ABOUT, LensError)
    content = read_bytes(folder / WEIGHTS, LensError)
    if about.weights not in (None, hashlib.sha256(content).hexdigest()):
        raise LensError(
            f"{folder / WEIGHTS} is not the file that was saved; fit the lens again or get a copy"
        )
    tensors = _tensors(content, folder / WEIGHTS)
    _same_model(tensors.pop("fingerprint", torch.empty(0)), subject.module, folder)
    rows = _rows(about, subject, folder / ABOUT)
    try:
        probe = _probe(rows, tensors, about)
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise LensError(f"{folder / WEIGHTS} does not hold the weights that {ABOUT} speaks of") from error
    return about, probe.to(subject.device)


def _tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise LensError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from error
    bad = [n for n, t in tensors.items() if not t.is_floating_point() or not torch.isfinite(t).all()]
    if bad:
        raise LensError(f"{path} is damaged: {bad[0]} has values that are no finite numbers")
    return tensors


def _rows(about: SavedLens, subject: Subject, path: Path) -> list[MaskRow]:
    """The rows that the file names, if they are those of a lens over what it says, on the model's sites."""
    rows = [MaskRow(site, edit, tuple(reads)) for site, edit, reads in about.rows]
    try:
        expected = rows_for(about.over, [row.site for row in rows], subject.sites[0])
    except TrainingError as error:
        raise LensError(f"{path} cannot be used: {error}") from error
    named = {site for row in rows for site in (row.site, row.edit, *row.reads)}
    if tuple(rows) != expected or not named <= set(subject.sites):
        raise LensError(
            f"{path} cannot be used: its rows are not those of a lens over {about.over} of this model"
        )
    if len({row.site for row in rows}) < len(rows) or not {d.site for d in about.diagnostics} <= named:
        raise LensError(f"{path} cannot be used: a site is named twice, or measured and not in the lens")
    return rows


def _probe(rows: Sequence[MaskRow], tensors: Mapping[str, Tensor], about: SavedLens) -> Probe:
    """A probe with these weights. It is made without memory first: sizes in a file may be anything."""
    with torch.device("meta"):
        widths = _widths(rows, tensors, about.causal)
        probe = Probe(rows, widths, about.settings.hidden, about.places, about.causal)
    probe.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
    return probe.eval().requires_grad_(False)


def _widths(rows: Sequence[MaskRow], tensors: Mapping[str, Tensor], causal: bool) -> dict[int, int]:
    """The widths of all sites of a probe, from the sizes of its baselines and networks."""
    widths = {row.edit: tensors[f"baselines.{i}"].shape[0] for i, row in enumerate(rows)}
    for i, row in enumerate(rows):
        missing = [site for site in row.reads if site not in widths]
        if missing:
            total = tensors[f"gates.{i}.mean"].shape[0] - sum(widths.get(site, 0) for site in row.reads)
            widths[missing[0]] = (total - 1) // 2 if causal else total  # a causal row reads this site twice
    return widths


def fingerprint(module: nn.Module) -> Tensor:
    """Mean and mean size of every parameter, (parameters, 2): tells models apart, not number formats."""
    return torch.stack(
        [
            torch.stack([p.detach().float().mean(), p.detach().float().abs().mean()]).cpu()
            for p in module.parameters()
        ]
    )


def _same_model(saved: Tensor, module: nn.Module, folder: Path) -> None:
    here = fingerprint(module)
    if saved.shape != here.shape or not torch.allclose(saved, here, rtol=1e-2, atol=1e-4):
        raise LensError(
            f"the lens in {folder} was fitted on another model than this {type(module).__name__}; "
            f"load the model it was fitted on, or fit a lens for this one"
        )
