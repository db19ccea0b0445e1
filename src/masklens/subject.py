"""The model under study: a module, its sites, its task and its encoder.

Sites are numbered once, here: 0 = word embeddings (before position and type embeddings), 1 = input of
block 1, k + 1 = output of block k.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attribution import Text
from .encoding import Batch, TokenizerEncoder
from .errors import ModelError, OutputError, SiteError
from .tap import Point, Replacement, output_lengths, tap
from .tasks import Task


class Run(NamedTuple):
    """What one forward pass gave: the task's output and the recorded states by site."""

    output: Tensor
    states: dict[int, Tensor]


class Subject:
    """A model together with what is needed to explain it.

        subject = Subject.from_pretrained("PATH_OR_HUB_ID")
        subject = Subject(model, tokenizer)
        subject = Subject.from_module(net, points=[...], task=..., encode=...)

    The model is used as it is and left as it was: mode, requires_grad, hooks and attention
    implementation, also after an exception.
    """

    module: nn.Module
    tokenizer: Any
    task: Task
    points: dict[int, Point]
    blocks: dict[int, Point]
    """the modules that may be skipped below an edit, by the site of their output"""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        task: Task | None = None,
        max_length: int | None = None,
        truncate: bool = False,
    ) -> None:
        from .families import find_points, longest_input, read_task

        points, blocks = find_points(model)
        encode = TokenizerEncoder(tokenizer, max_length or longest_input(model, tokenizer), truncate)
        self._set(model, points, task or read_task(model, tokenizer), encode, tokenizer, blocks)

    def _set(
        self,
        module: nn.Module,
        points: Mapping[int, Point],
        task: Task,
        encode: Callable[[Sequence[Any]], Batch],
        tokenizer: Any = None,
        blocks: Mapping[int, Point] | None = None,
    ) -> None:
        self.module, self.tokenizer, self.task = module, tokenizer, task
        self.points, self.blocks = dict(points), dict(blocks or {})
        self._encode = encode
        self._lengths: dict[Point, int] | None = None
        self._frozen = 0

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], device: str | None = None, **options: Any) -> Subject:
        """Load a checkpoint folder or hub id; the kind of model is read from its config."""
        from .families import load_pretrained

        model, tokenizer = load_pretrained(path)
        return cls(model.to(device) if device else model, tokenizer, **options)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        points: Sequence[Point] | Mapping[int, Point],
        task: Task,
        encode: Callable[[Sequence[Any]], Batch],
    ) -> Subject:
        """Any torch module: its sites in order, its task, and a function from texts to a Batch.

        The module is called as `module(**batch.inputs)`. A point's state must be (examples, tokens, width).
        """
        self = cls.__new__(cls)
        numbered = points if isinstance(points, Mapping) else dict(enumerate(points))
        self._set(module, numbered, task, encode)
        return self

    @property
    def sites(self) -> tuple[int, ...]:
        return tuple(self.points)

    @property
    def device(self) -> torch.device:
        first = next(iter(self.module.parameters()), None)
        return torch.device("cpu") if first is None else first.device

    def encode(self, texts: Sequence[Text]) -> Batch:
        """Tokenise and pad; the tensors are on the model's device."""
        return self._encode(texts).to(self.device)

    def check_sites(self, sites: Iterable[int]) -> tuple[int, ...]:
        """The sites as a tuple, or a SiteError for one that this subject does not have."""
        sites = tuple(sites)
        unknown = [site for site in sites if site not in self.points]
        if unknown or not sites:
            raise SiteError(f"unknown site {unknown or 'list: empty'}; this subject has sites {self.sites}")
        return sites

    def run(
        self,
        batch: Batch,
        replace: Mapping[int, Replacement] | None = None,
        record: Iterable[int] = (),
    ) -> Run:
        """One forward pass with states replaced and recorded at the given sites.

        When a whole state is given as a tensor, the blocks below it are not computed. Gradients are
        tracked if torch's grad mode is on, to the states only: the model's parameters are frozen.
        """
        record, replace = tuple(record), dict(replace or {})
        skip = self._skip(batch, replace, record)
        with self.frozen(), tap(self.points, record, replace, skip) as states:
            raw = self.module(**batch.inputs)
        output = self.task.read(raw, batch)
        if torch.isnan(output).any():
            bad = torch.isnan(output).reshape(len(batch), -1).any(1).nonzero()[:, 0].tolist()
            raise OutputError(
                f"the model's output is NaN for text {bad[0]} of the batch ({batch.texts[bad[0]]!r:.80}); "
                f"check the weights, or run it in a wider type than {output.dtype}"
            )
        return Run(output, states)

    @torch.no_grad()
    def states(self, batch: Batch, sites: Iterable[int] | None = None) -> Run:
        """The unedited output and states at the sites (all by default), without gradients."""
        return self.run(batch, record=self.sites if sites is None else self.check_sites(sites))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Evaluation mode and frozen parameters inside the block; as before after it. May be nested."""
        if self._frozen:
            yield
            return
        training = [m for m in self.module.modules() if m.training]
        learning = [p for p in self.module.parameters() if p.requires_grad]
        self._frozen += 1
        try:
            for m in training:
                m.training = False
            for p in learning:
                p.requires_grad_(False)
            yield
        finally:
            for m in training:
                m.training = True
            for p in learning:
                p.requires_grad_(True)
            self._frozen -= 1

    def _skip(
        self, batch: Batch, replace: Mapping[int, Replacement], record: Sequence[int]
    ) -> dict[Point, int]:
        """The blocks whose work a replacement makes useless, with the form of their output."""
        needed = [*record, *(site for site, new in replace.items() if not isinstance(new, Tensor))]
        fixed = [site for site, new in replace.items() if isinstance(new, Tensor)]
        top = max((site for site in fixed if site <= min(needed, default=site)), default=-1)
        useless = [point for site, point in self.blocks.items() if site <= top]
        if not useless:
            return {}
        if self._lengths is None:
            self._lengths = self._measure(batch.take([0]))
        return {point: self._lengths[point] for point in useless} if self._lengths else {}

    @torch.no_grad()
    def _measure(self, batch: Batch) -> dict[Point, int]:
        """What the blocks return, or nothing if a run without the first does not give the same output.

        A block that hands other things on beside the state (T5's position bias) cannot be skipped.
        """
        lowest = min(self.blocks)
        with output_lengths(self.blocks.values()) as lengths:
            reference, states = self.run(batch, record=[lowest])
        first = self.blocks[lowest]
        with self.frozen(), tap(self.points, replace={lowest: states[lowest]}, skip={first: lengths[first]}):
            output = self.task.read(self.module(**batch.inputs), batch)
        return lengths if torch.allclose(reference, output, rtol=1e-3, atol=1e-4, equal_nan=True) else {}


def as_subject(given: Any) -> Subject:
    """A subject from a subject or a Hugging Face pipeline."""
    if isinstance(given, Subject):
        return given
    if hasattr(given, "model") and hasattr(given, "tokenizer"):
        return Subject(given.model, given.tokenizer)
    raise ModelError(
        f"cannot explain a {type(given).__name__}; give a masklens.Subject, or a Hugging Face pipeline"
    )
