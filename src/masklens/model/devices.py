"""Check the device and the weights of a model before the work starts."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import ModelError


def check_device(device: str | torch.device) -> None:
    """Raise a ModelError for a device that this machine does not have; to be called before a model is
    loaded."""
    try:
        made = torch.device(device)
        if made.type == "cuda" and (made.index or 0) >= torch.cuda.device_count():
            raise RuntimeError(f"there are {torch.cuda.device_count()} GPUs that torch can use")
        if made.type != "cuda":  # a GPU is checked by the process that will use it
            torch.empty(0, device=made)
    except (RuntimeError, AssertionError) as error:
        raise _no_device(device, error) from error


def _no_device(device: str | torch.device, error: Exception) -> ModelError:
    return ModelError(
        f"the model cannot be moved to device {str(device)!r}: {str(error).splitlines()[0]}. Devices that "
        f"torch can use here: {', '.join(available())}"
    )


def available() -> list[str]:
    """The devices of this machine that this build of torch can use."""
    counts = {"cuda": torch.cuda.device_count(), "xpu": torch.xpu.device_count()}
    found = [f"{kind}:{i}" for kind, count in counts.items() for i in range(count)]
    return ["cpu", *found, *["mps"] * torch.backends.mps.is_available()]


def moved(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    try:
        return model if device is None else model.to(device)
    except (RuntimeError, AssertionError) as error:
        assert device is not None
        raise _no_device(device, error) from error


def check_weights(module: nn.Module) -> None:
    """Refuse weights on the meta device, unless a hook loads them, and weights that allow no gradients."""
    for part in module.modules():
        for name, p in part.named_parameters(recurse=False):
            if p.is_meta and not hasattr(part, "_hf_hook"):
                raise ModelError(
                    f"{type(module).__name__} has no weights: {name} is on the meta device; load them first"
                )
            if p.is_inference():
                raise ModelError(
                    f"{type(module).__name__} was made inside torch.inference_mode, so that it allows no "
                    f"gradients; load it outside"
                )
