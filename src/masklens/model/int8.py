"""Weights stored in 8 bits: every matrix as whole numbers from -127 to 127, with one scale per row.

Only the file has 8 bits. The weights become float32 again when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FILE = "model-int8.safetensors"
"""not model.safetensors, which transformers would read without the scales"""
SAVED = ("model.safetensors", "model.safetensors.index.json")
SCALE = ".scale"
LARGEST = 127


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices (rows, columns) in 8 bits with their scales (rows, 1), and vectors in half precision."""
    found = {}
    for name, value in tensors.items():
        if value.dim() < 2:
            found[name] = value.half()
        else:
            scale = value.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST
            found[name], found[name + SCALE] = (value / scale).round().to(torch.int8), scale
    return found


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All weights in float32: the rows of a matrix times their scales."""
    return {
        name: value * tensors[name + SCALE] if value.dtype == torch.int8 else value.float()
        for name, value in tensors.items()
        if not name.endswith(SCALE)
    }


def load(loader: Any, path: str | os.PathLike[str], **options: Any) -> tuple[Any, dict[str, Any]]:
    """`loader.from_pretrained(path)`, also from weights in 8 bits: the model, and what was missing.

    Weights as transformers saves them go first: a model that was trained on is saved beside the others.
    """
    file = Path(path) / FILE
    if not file.is_file() or any((file.parent / name).exists() for name in SAVED):
        return loader.from_pretrained(path, output_loading_info=True, **options)
    from safetensors.torch import load_file
    from transformers import AutoConfig

    config, weights = AutoConfig.from_pretrained(path), unpacked(load_file(file))
    kind = loader._model_mapping[type(config)]
    model, info = kind.from_pretrained(
        None, config=config, state_dict=weights, output_loading_info=True, **options
    )
    model.name_or_path = model.config.name_or_path = os.fspath(path)
    return model, info
