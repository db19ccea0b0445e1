"""The LM head of Decoded Grad-CAM: states to logits over the vocabulary.

The head of a language model is all that it computes after its last block. So masklens replaces the last
block's output by the states and lets the model do the rest. This works for every family, and includes the
final norm of causal models.
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
"""tokenizers whose vocabulary was compared with that of a head, which is slow: the head's path, and the size
of the tokenizer at that time"""

LogitHead = Callable[[Tensor], Tensor]
"""from states (rows, width) to logits (rows, vocabulary) in float32"""


def find_head(subject: Subject, given: Any) -> LogitHead:
    """The head of a language model that is given as an object or a path, or else found in the subject itself.

    Any other module is used as the head.
    """
    model = _find_model(subject, given)
    if not hasattr(model, "get_output_embeddings"):
        return lambda states: model(states).float()
    _check_fit(model, subject)
    return LanguageHead(model, subject.tokenizer)


def find_filler(subject: Subject, given: Any) -> Subject:
    """The masked language model that fills in tokens: the given one, or the one found in the subject."""
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
    """The head of a Hugging Face language model, as a function of the last block's output."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self.subject = Subject(model, tokenizer, task=Classification(()))
        self.last = max(self.subject.sites)
        self.names_next = names_the_next_token(model)
        """whether the head predicts the token after a position, and not the one at it"""

    def __call__(self, states: Tensor) -> Tensor:
        here = states.to(self.subject.device)[:, None]  # one token per row
        output = self.subject.run(_one_token_rows(len(here), here.device), replace={self.last: here}).output
        return output[:, 0].to(states.device)


def _one_token_rows(rows: int, device: torch.device) -> Batch:
    """Inputs of one token each. Which token does not matter, since the blocks' outputs are replaced."""
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
    """The subject's model if it is a language model, else the language model in its checkpoint."""
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
    """The language model at a path; None if the weights of its head are missing."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as error:
        if local:
            return None
        raise MethodError(f"no language model can be loaded from {path!r} ({error}); {REMEDY}") from error
    for auto in _language_models(config, transformers):
        with quiet():  # missing weights are expected here
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
    """The vocabulary of the tokenizer in a checkpoint; None if it has no tokenizer."""
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
    """Check that the head reads states of the subject's width and predicts tokens of its vocabulary."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise MethodError(
            f"{type(model).__name__}'s head reads its decoder, not the states of the text; {REMEDY}"
        )
    theirs, config = model.config, getattr(subject.module, "config", None)
    for name, what in (("hidden_size", "width"), ("vocab_size", "vocabulary size")):
        a, b = getattr(theirs, name, None), getattr(config, name, None)
        if a is not None and b is not None and a != b:
            raise MethodError(f"the language model has {what} {a}, this model {b}; {REMEDY}")
