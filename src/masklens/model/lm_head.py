"""The LM head of Decoded Grad-CAM: states to logits over the vocabulary.

A language model's head is whatever it computes after its last block. So the states are put in place of the
last block's output and the model does the rest: no family has to be known, and the final norm of causal
models is not forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import MethodError, ModelError
from ..tasks.classification import Classification
from . import int8
from .batch import Batch
from .families import names_the_next_token
from .loading import quiet
from .places import check_place
from .subject import Subject

REMEDY = (
    "give lm_head= the masked or causal language model that this model was fine-tuned from: a path, a hub "
    "id, or the model itself"
)

_same_vocabulary: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()
"""tokenizers with the head whose vocabulary they were found to have, and their size: it takes a while"""

LogitHead = Callable[[Tensor], Tensor]
"""from states (rows, width) to logits (rows, vocabulary) in float32"""


def find_head(subject: Subject, given: Any) -> LogitHead:
    """The head of a language model given as an object or a path, or else found with the subject itself.

    Any other module is taken as the head itself.
    """
    model = _find_model(subject, given)
    if not hasattr(model, "get_output_embeddings"):
        return lambda states: model(states).float()
    _check_fit(model, subject)
    return LanguageHead(model, subject.tokenizer)


def find_filler(subject: Subject, given: Any) -> Subject:
    """The masked language model that is given, or found with the subject: it fills in tokens."""
    model = _find_model(subject, given)
    if not type(model).__name__.endswith("ForMaskedLM"):
        raise MethodError(
            f"tokens are filled in by a masked language model, this is a {type(model).__name__}; give "
            f"replace='mask', or Fill(lm_head) with a masked language model of the same vocabulary"
        )
    _check_fit(model, subject)
    return LanguageHead(model, subject.tokenizer).subject


def _find_model(subject: Subject, given: Any) -> nn.Module:
    if given is None:
        return _own_language_model(subject)
    if isinstance(given, str | os.PathLike):
        return _from_path(os.fspath(given), subject)
    if not isinstance(given, nn.Module):
        raise MethodError(f"lm_head is a {type(given).__name__}; {REMEDY}")
    return given


class LanguageHead:
    """What a Hugging Face language model makes of the last block's output."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self.subject = Subject(model, tokenizer, task=Classification(()))
        self.last = max(self.subject.sites)
        self.names_next = names_the_next_token(model)
        """whether the head names the token after a position, not the one at it"""

    def __call__(self, states: Tensor) -> Tensor:
        here = states.to(self.subject.device)[:, None]  # one token a row
        output = self.subject.run(_one_token_rows(len(here), here.device), replace={self.last: here}).output
        return output[:, 0].to(states.device)


def _one_token_rows(rows: int, device: torch.device) -> Batch:
    """Inputs whose tokens do not matter: every block's work is replaced or left out."""
    ones = torch.ones(rows, 1, dtype=torch.long, device=device)
    return Batch(
        inputs={"input_ids": ones, "attention_mask": ones},
        valid=ones.bool(),
        special=~ones.bool(),
        segments=ones,
        tokens=(("",),) * rows,
        offsets=(((0, 0),),) * rows,
        texts=("",) * rows,
        truncated=(False,) * rows,
    )


def _own_language_model(subject: Subject) -> nn.Module:
    """The subject's model if it is a language model, or the one whose weights lie in its checkpoint."""
    module: Any = subject.module
    if getattr(module, "get_output_embeddings", lambda: None)() is not None:
        return module
    path = getattr(getattr(module, "config", None), "_name_or_path", "")
    found = _load(path, local=True) if path else None
    if found is None:
        raise MethodError(f"the model's checkpoint has no LM head to decode its states with; {REMEDY}")
    return found.to(subject.device)


def _from_path(path: str, subject: Subject) -> nn.Module:
    try:
        check_place(path)
    except ModelError as error:
        raise MethodError(f"{error}; {REMEDY}") from error
    found = _load(path, local=False)
    if found is None:
        raise MethodError(f"{path!r} holds no language model with its head; {REMEDY}")
    _check_vocabulary(path, subject.tokenizer)
    return found.to(subject.device)


@lru_cache(maxsize=2)
def _load(path: str, local: bool) -> nn.Module | None:
    """The language model at a path, or None where its head's weights are not there."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as error:
        if local:
            return None
        raise MethodError(f"no language model can be loaded from {path!r} ({error}); {REMEDY}") from error
    for auto in _language_models(config, transformers):
        with quiet():  # whether weights are missing is what is being found out
            model, info = int8.load(auto, path, use_safetensors=True, local_files_only=local)
        if not info["missing_keys"] and not info.get("mismatched_keys"):
            return model.eval()
    return None


def _language_models(config: Any, transformers: Any) -> list[Any]:
    """The loaders that know this kind of model, the one its config names first."""
    autos = [transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM]
    known = [auto for auto in autos if type(config) in auto._model_mapping]
    named = " ".join(getattr(config, "architectures", None) or [])
    return known[::-1] if "CausalLM" in named or "LMHeadModel" in named else known


@lru_cache(maxsize=8)
def _vocabulary(path: str) -> dict[str, int] | None:
    """The vocabulary beside a checkpoint, or None where there is no tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path).get_vocab()
    except (OSError, ValueError):
        return None


def _check_vocabulary(path: str, tokenizer: Any) -> None:
    if tokenizer is None or _same_vocabulary.get(tokenizer) == (path, len(tokenizer)):
        return
    theirs = _vocabulary(path)
    if theirs is not None and theirs != tokenizer.get_vocab():
        raise MethodError(f"the language model at {path!r} has another vocabulary than this model; {REMEDY}")
    _same_vocabulary[tokenizer] = path, len(tokenizer)


def _check_fit(model: Any, subject: Subject) -> None:
    """The head must read states of this width and name the tokens of this vocabulary."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise MethodError(
            f"{type(model).__name__}'s head reads its decoder, not the states of the text; {REMEDY}"
        )
    theirs, config = model.config, getattr(subject.module, "config", None)
    for name, what in (("hidden_size", "width"), ("vocab_size", "vocabulary size")):
        a, b = getattr(theirs, name, None), getattr(config, name, None)
        if a is not None and b is not None and a != b:
            raise MethodError(f"the language model has {what} {a}, this model {b}; {REMEDY}")
