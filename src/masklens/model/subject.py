"""The model under study: a module, its sites, its task and its encoder.

Sites are numbered once, here: 0 = word embeddings (before position and type embeddings), 1 = input of
block 1, k + 1 = output of block k.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace as _replace
from textwrap import shorten
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attribution import Text
from ..errors import ModelError, SiteError, TextError
from ..tasks.base import Task
from .batch import Batch, TokenizerEncoder
from .default import HOME
from .devices import check_device, check_weights, moved
from .gradients import Passage
from .locks import lock_of
from .modes import let_learn, outside_inference_mode, unpacked
from .nans import looking_now, refuse_nan
from .tap import Point, Replacement, gathering, keeping_hooks, output_lengths, recomputing, tap
from .tokenizer import check_tokenizer

NUMBERS_KEPT = {"cpu": 2**23, "cuda": 2**26}
"""tokens x width x blocks of a text up to which the values inside the blocks are kept for gradients, about
100 bytes for each number. For longer texts they are computed twice. (How many texts go together is bounded
elsewhere.)"""


class Run(NamedTuple):
    """What one forward pass gave: the task's output and the recorded states by site."""

    output: Tensor
    states: dict[int, Tensor]


class Subject:
    """A model together with what is needed to explain it.

        subject = Subject.from_pretrained("PATH_OR_HUB_ID")
        subject = Subject(model, tokenizer)
        subject = Subject.from_module(net, points=[...], task=..., encode=...)

    The model is left unchanged, also after an exception: its mode, requires_grad, hooks and attention
    implementation. Several threads may use one subject, or several subjects over one model: they take turns.
    """

    module: nn.Module
    tokenizer: Any
    task: Task
    points: dict[int, Point]
    blocks: dict[int, Point]
    """the blocks, which are skipped below a replaced state, by the site of their output"""
    head: nn.Module | None
    """the module that makes a language model's logits, where it has one"""
    _options: dict[str, Any]
    """what every call of the module gets"""
    _alone: bool
    """whether texts of different lengths cannot share a batch"""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        task: Task | None = None,
        max_length: int | None = None,
        truncate: bool = False,
    ) -> None:
        from . import families

        model = families.unwrap(model)
        points, blocks = families.find_points(model)
        check_tokenizer(tokenizer, points[0].module)
        task = task or families.read_task(model, tokenizer)
        encode = TokenizerEncoder(
            tokenizer,
            max_length or families.longest_input(model, tokenizer),
            truncate,
            families.padding_id(model, tokenizer),
            families.accepted_inputs(model),
            task.cut,
        )
        self._set(model, points, task, encode, tokenizer, blocks)
        self.head, self._options = families.output_head(model), families.call_options(model)
        self._alone = families.family_of(model).alone

    def _set(
        self,
        module: nn.Module,
        points: Mapping[int, Point],
        task: Task,
        encode: Callable[[Sequence[Any]], Batch],
        tokenizer: Any = None,
        blocks: Mapping[int, Point] | None = None,
    ) -> None:
        check_weights(module)
        self.module, self.tokenizer, self.task = module, tokenizer, task
        self.points, self.blocks = dict(points), dict(blocks or {})
        self.head = None
        self._options = {}
        self._alone = False
        self._encode = encode
        self._lengths: dict[Point, int] | None = None
        self._frozen = 0
        self._passage = Passage()
        self._compiled = False
        """whether a part is compiled; found when the model is frozen"""

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        *,
        task: Task | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
        **loading: Any,
    ) -> Subject:
        """Load a model from a folder or by its hub id. The task is read from its config.

        Further options, such as `device_map` and `revision`, go to transformers. Weights come from
        safetensors, or from a GGUF file: give its path, or its name as `gguf_file`. Pickled weights are not
        read. Without `dtype` a model runs in the number format of its checkpoint, except that float16 becomes
        float32 on a CPU, where it is many times faster.
        """
        from .loading import load_pretrained

        if device is not None:
            check_device(device)
        with outside_inference_mode():
            model, tokenizer = load_pretrained(path, dtype, gguf_file, trust_remote_code, **loading)
            model = moved(model, device)
        if dtype is None and {(p.device.type, p.dtype) for p in model.parameters()} == {
            ("cpu", torch.float16)
        }:
            model = model.float()
        return cls(model, tokenizer, task, max_length, truncate)

    def in_dtype(self, dtype: torch.dtype) -> Subject:
        """A copy with its own module, in another number format."""
        made = copy.copy(self)
        together = (self.module, self.points, self.blocks, self.head)  # these name parts of the module
        made.module, made.points, made.blocks, made.head = copy.deepcopy(together)
        made.module.to(dtype)
        made._lengths, made._passage = None, Passage()
        return made

    @classmethod
    def default(cls, device: str | torch.device | None = None) -> Subject:
        """The small sentiment model inside the package. Nothing is downloaded."""
        return cls.from_pretrained(HOME, device=device)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        points: Sequence[Point] | Mapping[int, Point],
        task: Task,
        encode: Callable[[Sequence[Any]], Batch],
    ) -> Subject:
        """A subject from a torch module, its sites in order, its task, and a function from texts to a Batch.

        The module is called as `module(**batch.inputs)`. A point's state must be (examples, tokens, width).
        """
        self = cls.__new__(cls)
        numbered = points if isinstance(points, Mapping) else dict(enumerate(points))
        self._set(module, numbered, task, encode)
        return self

    def __repr__(self) -> str:
        labels = shorten(", ".join(getattr(self.task, "labels", ())), 60, placeholder=" ...")
        task = f"{type(self.task).__name__}{f': {labels}' if labels else ''}"
        facts = (type(self.module).__name__, task, f"{len(self.blocks)} blocks", str(self.device))
        return f"Subject({'; '.join(facts)})"

    @property
    def sites(self) -> tuple[int, ...]:
        """The numbers of the sites, in order."""
        return tuple(self.points)

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs. A model on several devices has it in its dispatch hook."""
        hook: Any = getattr(self.points[min(self.points)].module, "_hf_hook", None)
        if getattr(hook, "execution_device", None) is not None:
            return torch.device(hook.execution_device)
        first = next(iter(self.module.parameters()), None)
        return torch.device("cpu") if first is None else first.device

    def encode(self, texts: Sequence[Text], targets: Sequence[Any] | None = None) -> Batch:
        """Tokenise and pad the texts. The tensors are on the model's device.

        Targets, one for each text, matter only if they are part of the input: the continuation of a
        language model.
        """
        batch = self.tokenized(texts, targets)
        with outside_inference_mode():
            return batch.to(self.device)

    def tokenized(self, texts: Sequence[Text], targets: Sequence[Any] | None = None) -> Batch:
        """The same, its tensors still where the encoder made them: a tokenizer's are on the CPU."""
        with outside_inference_mode():
            batch = _replace(self._encode([self.task.source(text) for text in texts]), texts=tuple(texts))
            batch = self.task.prepare(batch, None if targets is None else list(targets))
        limit, length = getattr(self._encode, "max_length", None), batch.shape[1]
        if limit is not None and length > limit:
            raise TextError(
                f"text and continuation have {length} tokens; the model takes {limit}: shorten them"
            )
        if self._alone and not bool(batch.valid.all()):
            raise ModelError(
                f"{type(self.module).__name__} gives a text another output when it is padded; explain texts "
                f"of different lengths one at a time"
            )
        return batch

    def check_sites(self, sites: Iterable[int]) -> tuple[int, ...]:
        """Each of the sites once, or a SiteError for one that this subject does not have."""
        sites = tuple(dict.fromkeys(sites))
        unknown = [site for site in sites if site not in self.points]
        if unknown or not sites:
            raise SiteError(f"unknown site {unknown or 'list: empty'}; this subject has sites {self.sites}")
        return sites

    def run(
        self,
        batch: Batch,
        replace: Mapping[int, Replacement] | None = None,
        record: Iterable[int] = (),
        check: bool = True,
    ) -> Run:
        """One forward pass with states replaced and recorded at the given sites.

        If a replacement is a tensor, the blocks below it are not computed. If torch's grad mode is on,
        states have gradients, but parameters are frozen. With `check`, an output that is NaN is an error;
        to see it, the call waits for the GPU, or its caller looks later (`nans.looking_later`).
        """
        record, edits = tuple(record), dict(replace or {})
        with self.frozen(), self._lean():
            skip = self._skip(batch, edits, record)
            looking = self._passage.looked_at(self.module, self.points.values(), edits)
            with looking, tap(self.points, record, edits, skip) as states:
                output = self._output(batch, check)
        for site, state in states.items():
            _check_state(site, state, batch)
        return Run(output, states)

    def _lean(self) -> AbstractContextManager[None]:
        """Inside the block, gradients of long texts do not keep the inner values of all blocks."""
        if not torch.is_grad_enabled() or not self.blocks:
            return nullcontext()
        most = NUMBERS_KEPT.get(self.device.type, NUMBERS_KEPT["cpu"]) // len(self.blocks)

        def long(state: Tensor) -> bool:
            return state[0].numel() > most

        @contextmanager
        def frozen() -> Iterator[None]:
            # On a GPU the way back runs in another thread, while the thread that waits for it has the lock.
            with nullcontext() if self._frozen else self.frozen():
                yield

        return recomputing([point.module for point in self.blocks.values()], long, frozen)

    def _output(self, batch: Batch, check: bool = True) -> Tensor:
        return self._read(*self._raw(batch), check)

    def _raw(self, batch: Batch, **options: Any) -> tuple[Any, Batch]:
        """The module's raw output, and the batch that says where to read it.

        A language model's head is applied only where its logits are read.
        """
        where = batch.marks.get("positions")
        if self.head is None or where is None:
            return self._call(batch, **options), batch
        with gathering(self.head, where) as done:
            raw = self._call(batch, **options)
        steps = torch.arange(where.shape[1], device=where.device).where(where >= 0, -1)
        return raw, _replace(batch, marks=batch.marks | {"positions": steps}) if done else batch

    def _call(self, batch: Batch, **options: Any) -> Any:
        """The module's raw output. Compiled parts run uncompiled: compiled code ignores later hooks."""
        if not self._compiled:
            return self.module(**batch.inputs, **self._options, **options)
        with torch.compiler.set_stance("force_eager"):
            return self.module(**batch.inputs, **self._options, **options)

    def _read(self, raw: Any, batch: Batch, check: bool = True) -> Tensor:
        """The task's output in at least float32, on the batch's device."""
        output = self.task.read(raw, batch)
        if check:
            refuse_nan(output, batch.texts)
        return output.to(torch.promote_types(output.dtype, torch.float32))

    @contextmanager
    def eager_attention(self) -> Iterator[None]:
        """Inside the block, use the attention implementation that returns its weights.

        Others (sdpa, flash) return no weights and raise no error.
        """
        from .families import base_of

        model: Any = base_of(self.module)
        with lock_of(self.module):
            before = getattr(getattr(model, "config", None), "_attn_implementation", None)
            if before in (None, "eager"):
                yield
                return
            try:
                model.set_attn_implementation("eager")
                yield
            finally:
                model.set_attn_implementation(before)

    def attentions(self, batch: Batch) -> dict[int, Tensor]:
        """Attention weights (examples, heads, tokens, tokens) by the site of their block's output."""
        with self.frozen(), self.eager_attention(), keeping_hooks(self.module):
            raw, where = self._raw(batch, output_attentions=True)
        with looking_now():  # what is compared here must be numbers
            self._check_same(self._read(raw, where), batch)
        weights = next((raw[k] for k in ("encoder_attentions", "attentions") if raw.get(k)), ())
        examples, tokens = batch.shape
        given = [w for w in weights if isinstance(w, Tensor) and w.dim() == 4]
        right = [w for w in given if w.shape[0] == examples and w.shape[2:] == (tokens, tokens)]
        if len(weights) != len(self.blocks) or len(right) != len(weights):
            raise ModelError(
                f"{type(self.module).__name__} gave {len(right)} attention matrices of tokens by tokens for "
                f"{len(self.blocks)} blocks; this model's attention cannot be read"
            )
        return dict(zip(self.blocks, weights, strict=True))

    def _check_same(self, output: Tensor, batch: Batch) -> None:
        """The attention implementation that gives weights must give the model's own output."""
        own = self.run(batch).output
        if not torch.allclose(output, own, rtol=0.05, atol=0.05 * float(own.abs().max())):
            raise ModelError(
                f"{type(self.module).__name__} gives another output when it is asked for its attention "
                f'weights, so they are not those of its answer; load it with attn_implementation="eager"'
            )

    @torch.no_grad()
    def states(self, batch: Batch, sites: Iterable[int] | None = None) -> Run:
        """The unedited output and states at the sites (all by default), without gradients."""
        return self.run(batch, record=self.check_sites(self.sites if sites is None else sites))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Evaluation mode and frozen parameters inside the block, which other threads wait for.

        The blocks may be nested.
        """
        with lock_of(self.module), outside_inference_mode():
            if self._frozen:
                yield
            else:
                with self._freezing():
                    yield

    @contextmanager
    def _freezing(self) -> Iterator[None]:
        modules = list(self.module.modules())
        self._compiled = any(
            getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in modules
        )
        training = [m for m in modules if m.training]
        # By place: a model whose weights are loaded as they are needed makes new parameters.
        places = [(m._parameters, name) for m in modules for name in m._parameters]
        learning = [(own, name) for own, name in places if getattr(own[name], "requires_grad", False)]
        self._frozen += 1
        self._passage.forget()
        try:
            for m in training:
                m.training = False
            let_learn(learning, False)
            with unpacked(modules):
                yield
        finally:
            for m in training:
                m.training = True
            let_learn(learning, True)
            self._frozen -= 1

    def _skip(
        self, batch: Batch, replace: Mapping[int, Replacement], record: Sequence[int]
    ) -> dict[Point, int]:
        """The blocks that need not be computed because of a replacement, with the form of their output."""
        needed = [*record, *(site for site, new in replace.items() if not isinstance(new, Tensor))]
        fixed = [site for site, new in replace.items() if isinstance(new, Tensor)]
        top = max((site for site in fixed if site <= min(needed, default=site)), default=-1)
        useless = [point for site, point in self.blocks.items() if site <= top]
        if not useless:
            return {}
        if self._lengths is None:
            with looking_now():
                self._lengths = self._measure(batch.take([0]))
        return {point: self._lengths[point] for point in useless if point in self._lengths}

    @torch.no_grad()
    def _measure(self, batch: Batch) -> dict[Point, int]:
        """What the blocks return; nothing if a block cannot be skipped.

        A block cannot be skipped if it returns other tensors beside the state (T5's position bias), or if a
        run without the first block does not give exactly the same output.
        """
        lowest = min(self.blocks)
        with output_lengths(self.blocks.values()) as lengths:
            reference, states = self.run(batch, record=[lowest])
        if len(lengths) < len(self.blocks):
            return {}
        first = self.blocks[lowest]
        with self.frozen(), tap(self.points, replace={lowest: states[lowest]}, skip={first: lengths[first]}):
            output = self._output(batch)
        return lengths if torch.equal(reference, output) else {}


def _check_state(site: int, state: Tensor, batch: Batch) -> None:
    if state.dim() != 3 or state.shape[:2] != batch.shape:
        raise SiteError(
            f"the state at site {site} has shape {tuple(state.shape)}; (examples, tokens, width) with "
            f"{tuple(batch.shape)} first is needed. A model that packs its tokens (flash attention) must be "
            f'loaded with attn_implementation="sdpa"; another site needs register_family or other points'
        )


def as_subject(given: Any) -> Subject:
    """A subject from a subject or a Hugging Face pipeline."""
    if isinstance(given, Subject):
        return given
    if hasattr(given, "model") and hasattr(given, "tokenizer"):
        return Subject(given.model, given.tokenizer)
    raise ModelError(
        f"cannot explain a {type(given).__name__}; give a masklens.Subject, or a Hugging Face pipeline"
    )
