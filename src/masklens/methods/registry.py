"""The registry of methods. A method is a function that takes a Request and returns scores.

    @register("gradient", summary="...", cost="...", paper="...")
    def gradient(request: Request, *, norm: str = "l2") -> Tensor:     # (examples, sites, tokens)

Its keyword arguments are the options that `masklens.explain` takes for it. `masklens.methods()` lists the
names.
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import MethodError, did_you_mean
from ..model.batch import Batch
from ..model.subject import Run, Subject

FILES = (
    "..diffmask.lens",
    ".gradient",
    ".bottleneck",
    ".guan",
    ".erasure",
    ".decoded",
    ".attention",
    ".perturbation",
    ".random",
    ".presets",
)
"""the modules that register methods, relative to this package"""
TOKENS = 20
"""the number of tokens of a text that is assumed to compare costs"""


@dataclass
class Request:
    """What a method has to explain: the targets of a batch of texts, at some sites."""

    subject: Subject
    batch: Batch
    sites: tuple[int, ...]
    wanted: Any = None
    """targets as the user gave them"""
    seed: int = 0
    baselines: Any = None
    """the baseline that stands for a missing token, as the user gave it; see the method's documentation"""
    heads: Tensor | None = None
    """(examples, tokens) int: the first token of each token's unit, if tokens are removed in units"""
    shared: bool = False
    """whether all examples are beginnings of the last one, so that a causal model need only run the last"""
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """a method's notes on single examples, which go into the settings of their records"""
    expected: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """for additive methods: what the scores of each example add up to in theory, site by site"""
    _reference: Tensor | None = field(default=None, repr=False)
    _states: dict[int, Tensor] | None = field(default=None, repr=False)

    def note(self, output: Tensor, states: dict[int, Tensor] | None = None) -> Tensor:
        """Store an unedited output, and states, that the method has computed, so that they are not computed
        again."""
        self._states = self._states or states
        if self._reference is None:
            self._reference = output.detach()
        return output

    @property
    def reference(self) -> Tensor:
        """The unedited output."""
        if self._reference is None:
            self._reference = self._unedited(self.sites[:1]).output
        return self._reference

    def known(self, baseline: Any) -> Any:
        """The Baseline, with the states that it replaces if these are known."""
        state = (self._states or {}).get(getattr(baseline, "site", -1))
        return baseline if state is None else replace(baseline, state=state)

    def states(self) -> dict[int, Tensor]:
        """The unedited states at the requested sites, (examples, tokens, width) each, computed once."""
        if self._states is None:
            output, self._states = self._unedited(self.sites)
            self.note(output)
        return self._states

    def _unedited(self, sites: Sequence[int]) -> Run:
        if not self.shared:
            return self.subject.states(self.batch, sites)
        output, states = self.subject.states(self.whole, sites)
        each = {site: state.expand(len(self.batch), -1, -1) for site, state in states.items()}
        return Run(self.by_step(output)[0], each)

    @cached_property
    def whole(self) -> Batch:
        """If `shared`: the longest example as a batch, with its output read where each example ends."""
        ends = self.batch.marks["positions"][:, 0]  # (examples,)
        return replace(self.batch.take([len(self.batch) - 1]), marks={"positions": ends[None]})

    @staticmethod
    def by_step(output: Tensor) -> Tensor:
        """The output of the whole text (views, examples, ...) as outputs of its beginnings: (views, examples,
        1, ...)."""
        return output[:, :, None]

    @cached_property
    def target(self) -> Tensor:
        """Target ids: the prediction unless the user asked for another."""
        return self.subject.task.resolve(self.wanted, self.reference, self.batch)

    def notes_on(self, i: int) -> dict[str, Any]:
        """The notes that go into the settings of an example's record, beside the options."""
        return self.notes.get(i, {}) | ({"truncated": True} if self.batch.truncated[i] else {})

    def expect(self, baseline: Tensor) -> None:
        """Note that the scores of the next site add up to the target's score minus `baseline` (examples,)."""
        gap = self.subject.task.score(self.reference, self.target) - baseline
        for i, value in enumerate(gap.float().tolist()):
            self.expected[i] = (*self.expected.get(i, ()), value)

    def generators(self) -> list[torch.Generator]:
        """One CPU generator per example, seeded by the seed and the tokens: the noise of a text does not
        depend on the other texts of the batch."""
        return [torch.Generator().manual_seed(seed) for seed in self._seeds()]

    def _seeds(self) -> list[int]:
        return [zlib.crc32(f"{self.seed}\0{tokens}".encode()) for tokens in self.batch.tokens]

    @property
    def _own(self) -> slice:
        """The examples that have noise of their own: a beginning has the noise of the whole text."""
        return slice(-1, None) if self.shared else slice(None)

    def noise(self, draws: int, width: int, kind: Callable[..., Tensor] = torch.randn) -> Tensor:
        """Reproducible noise (examples, draws, tokens, width), zero at padding."""
        generator = torch.Generator()
        return self._noise(map(generator.manual_seed, self._seeds()[self._own]), draws, width, kind)

    def _noise(
        self, generators: Iterable[torch.Generator], draws: int, width: int, kind: Callable[..., Tensor]
    ) -> Tensor:
        """The same, from the generators of the examples that have noise of their own."""
        valid = self.batch.valid.cpu()
        own = valid[self._own]
        counts = own.sum(1).tolist()
        made = [
            kind(draws, count, width, generator=generator, dtype=torch.float32)
            for generator, count in zip(generators, counts, strict=True)
        ]
        out = torch.zeros(len(counts), valid.shape[1], draws, width, dtype=torch.float32)
        out[own] = torch.cat(made, 1).transpose(0, 1)
        out = out.transpose(1, 2)
        if self.shared:
            out = out * valid[:, None, :, None]
        return out.to(self.batch.valid.device)

    def draws(self, width: int, kind: Callable[..., Tensor] = torch.randn) -> Iterator[Tensor]:
        """Endless reproducible noise, each (examples, tokens, width), zero at padding.

        Several draws are made at once to save calls; how many does not depend on the batch, so neither
        does the noise.
        """
        generators = self.generators()[self._own]
        while True:
            yield from self._noise(generators, 8, width, kind).unbind(1)


@dataclass(frozen=True)
class Method:
    """A registered method, with the facts that `masklens methods` shows."""

    name: str
    function: Callable[..., Tensor]
    summary: str
    cost: str
    """the cost in forward passes over the same batch"""
    paper: str
    needs: str = "gradients"
    baseline: str = ""
    """the default of `baselines`, in words; empty for a method that has no use for them"""
    shares: bool = False
    """whether the runs for a text also serve all its beginnings (see `Request.shared`)"""
    sites: Literal["inputs", "embeddings", "all", "blocks"] = "inputs"
    """the sites that it explains by default"""
    only_blocks: bool = False
    """whether it has scores at blocks only"""
    merge: str = "sum"
    exempt: dict[str, str] = field(default_factory=dict)
    """contract checks that do not apply, each with the reason: "zero_effect", "planted", ..."""
    quick: dict[str, Any] = field(default_factory=dict)
    """options that make the method cheap, for tests on many models"""
    prepare: Callable[[Subject, dict[str, Any]], dict[str, Any]] = lambda subject, options: options
    """a function from the options that were given to those that the method takes; it loads a lens, say"""

    @property
    def options(self) -> dict[str, Any]:
        """The options it takes, with their defaults."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {p.name: p.default for p in parameters}

    @property
    def passes(self) -> float:
        """The approximate number of forward passes for a text, with the default options."""
        cost = re.split("[,;:]", self.cost)[0]
        for option, default in self.options.items():
            cost = cost.replace(option, str(default))
        result = float(self.options.get("budget", 1))
        for number in re.findall(r"\d+(?:\.\d+)?", cost):
            result *= float(number)
        return result * (TOKENS if cost.endswith("per token") else 1)

    @property
    def all_sites_at_once(self) -> bool:
        """Whether one backward pass gives the scores of all sites."""
        return self.cost == "2"

    @property
    def is_preset(self) -> bool:
        """Whether this is one of our methods with another tool's settings."""
        return self.function.__module__.endswith("presets")

    def default_sites(self, subject: Subject) -> tuple[int, ...]:
        if self.sites == "inputs":
            return subject.sites[:1]
        if self.sites == "embeddings":
            return subject.sites[:2][-1:]
        return subject.sites if self.sites == "all" else tuple(subject.blocks) or subject.sites

    def all_sites(self, subject: Subject) -> tuple[int, ...]:
        """The sites at which it has scores."""
        return tuple(subject.blocks) if self.only_blocks and subject.blocks else subject.sites

    def check_options(self, given: Sequence[str]) -> None:
        unknown = [name for name in given if name not in self.options]
        if unknown:
            allowed = (", ".join(self.options) or "none") + did_you_mean(unknown[0], self.options)
            raise MethodError(f"{self.name} has no option {unknown[0]!r}; its options: {allowed}")


def check_count(name: str, value: Any) -> None:
    """A MethodError unless the option is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise MethodError(f"{name} is {value!r}; it must be a whole number of at least 1")


def check_choice(name: str, value: str, *known: str) -> None:
    """A MethodError unless the option is one of the names that are known."""
    if value not in known:
        *first, last = map(repr, known)
        raise MethodError(f"{name}={value!r} is not known; give {', '.join(first)} or {last}")


METHODS: dict[str, Method] = {}


def register(name: str, **about: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function as the method `name`. `about` gives the other fields of `Method`."""

    def enter(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        METHODS[name] = Method(name, function, **about)
        return function

    return enter


def find(name: str) -> Method:
    """The method with this name. An unknown name raises an error that names a close one."""
    load_all()
    if name not in METHODS:
        hint = did_you_mean(name, METHODS) or ";"
        raise MethodError(f"no method {name!r}{hint} `masklens methods` lists all")
    return METHODS[name]


def load_all() -> None:
    """Import every file that registers methods."""
    for file in FILES:
        import_module(file, __package__)
