"""Load a Hugging Face model and its tokenizer. Weights are never read from pickle."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..errors import ModelError
from . import int8
from .families import HEADS
from .places import check_place, gguf_place, not_loaded
from .tokenizer import load_tokenizer


def load_pretrained(
    path: str | os.PathLike[str],
    dtype: Any = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> tuple[nn.Module, Any]:
    """Load the model, with the head that its config names, and the tokenizer. Pickled weights are never read.

    A GGUF file is loaded as a causal language model. It may be named by the path, too.
    """
    from safetensors import SafetensorError

    if gguf_file is None and "subfolder" not in options:
        path, gguf_file = gguf_place(path)
    if "subfolder" not in options:
        check_place(path, gguf_file)
    everywhere: dict[str, Any] = {name: options.pop(name) for name in _WHERE if name in options}
    everywhere["trust_remote_code"] = trust_remote_code
    try:
        return _load(path, dtype, gguf_file, everywhere, options)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise not_loaded(path, error) from error


def _load(
    path: str | os.PathLike[str],
    dtype: Any,
    gguf_file: str | None,
    everywhere: dict[str, Any],
    options: dict[str, Any],
) -> tuple[nn.Module, Any]:
    import transformers

    if gguf_file:
        everywhere["gguf_file"] = gguf_file
        loader = LANGUAGE_MODELS[0]
    else:
        options["use_safetensors"] = True
        loader = _loader(transformers.AutoConfig.from_pretrained(path, **everywhere), path)
    if dtype is not None:
        options["dtype"] = dtype
    tokenizer = load_tokenizer(path, everywhere)
    with quiet():
        model, info = int8.load(getattr(transformers, loader), path, **everywhere, **options)
    _check_weights(model, info, path)
    return model, tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Silence two things of transformers: its report about missing and unused weights (`_check_weights` reads
    these) and its progress bars for reading weights from disk. Bars for downloads stay."""
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if bars:
        enable_progress_bars()  # the line before has switched off those for downloads too
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _check_weights(model: nn.Module, info: Mapping[str, Any], path: Any) -> None:
    """Refuse a model with missing weights, and warn of unused weights unless they belong to another head."""
    missing, unused = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing:
        raise ModelError(
            f"{os.fspath(path)!r} lacks {len(missing)} weights of {type(model).__name__}, such as "
            f"{missing[0]}: they would be random. Give the fine-tuned checkpoint; where random ones are "
            f"meant, load the model yourself and use Subject(model, tokenizer)"
        )
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    strange = [name for name in unused if name.startswith(prefix) and "pooler" not in name]
    if strange:
        warnings.warn(
            f"{type(model).__name__} has no place for {len(strange)} weights of {os.fspath(path)!r}, such as "
            f"{strange[0]}; do config and weights belong together?",
            stacklevel=5,
        )


_WHERE = ("revision", "subfolder", "token", "cache_dir", "local_files_only")
"""options that say where files come from; config, model and tokenizer get them"""


LANGUAGE_MODELS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")


def loader_of(path: str | os.PathLike[str], trust_remote_code: bool = False) -> str:
    """The class of transformers that loads a model: one of `LANGUAGE_MODELS`, or another."""
    import transformers

    path, gguf_file = gguf_place(path)
    check_place(path, gguf_file)
    if gguf_file:
        return LANGUAGE_MODELS[0]
    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise not_loaded(path, error) from error
    return _loader(config, path)


def _loader(config: Any, path: Any) -> str:
    """The class of transformers that loads the head which `config.architectures` names."""
    named = getattr(config, "architectures", None) or []
    for name in named:
        for ending, head in HEADS.items():
            if name.endswith(ending):
                return head.loader
    raise ModelError(
        f"the config of {os.fspath(path)!r} names {named or 'no architecture'}: no head to explain. Names "
        f"may end in {', '.join(HEADS)}; else load the model yourself and use Subject(model, tokenizer, task)"
    )
