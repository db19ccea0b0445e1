"""Whether a model is as it was."""

from __future__ import annotations

from typing import Any

from torch import nn


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Everything about a module that an explanation must leave alone."""
    modules, parameters = list(module.named_modules()), list(module.named_parameters())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "hooks": {f"{n}{kind}": list(getattr(m, kind)) for n, m in modules for kind in hooks},
        "mode": {n: m.training for n, m in modules},
        "attributes": {n: sorted(m.__dict__) for n, m in modules},
        "requires_grad": {n: p.requires_grad for n, p in parameters},
        "gradients": {n: p.grad is None for n, p in parameters},
        "weights": {
            n: (p.shape, float(p.detach().float().sum())) for n, p in parameters if p.device.type != "meta"
        },
        "attention": getattr(getattr(module, "config", None), "_attn_implementation", None),
    }
