"""Presets: methods with the settings of the tools that the Decoded Grad-CAM paper compares with.

AllenNLP Interpret explains the loss of the predicted label, takes absolute values and normalises a text's
scores to a sum of 1. Thermostat uses captum on the output of the whole embedding layer, or on token ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .batching import stacked
from .gradient import grad_x_input, integrated, integrated_gradients, quadrature, slopes, smooth_gradient
from .perturbation import deeplift_shap, gradient_shap, lime, occlusion, shapley
from .registry import METHODS, Request, register

ALLENNLP = "Wallace et al. 2019 (AllenNLP Interpret)"


def _loss(request: Request) -> Any:
    """Minus the log-probability of the target."""
    return lambda output, target: -request.subject.task.log_probability(output, target)


def _shares(request: Request, values: Callable[[int], Tensor]) -> Tensor:
    """|Sums| over features of the values (examples, tokens, width) at each site, as shares of the text."""
    scores = stacked(request, lambda site: _sum_beyond_rounding(values(site)))
    size = scores.abs() * request.batch.valid[:, None]
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def _sum_beyond_rounding(values: Tensor) -> Tensor:
    """The sum over features, or 0 where it is no larger than the rounding error of terms that cancel out.
    What is not finite stays so, and is refused later."""
    total = values.sum(-1)
    return torch.where(total.abs() <= 1e-4 * values.abs().sum(-1), 0.0, total)


@register(
    "allennlp_simple", summary="AllenNLP's gradient of the loss times the embedding", cost="2", paper=ALLENNLP
)
def allennlp_simple(request: Request) -> Tensor:
    """|sum_k dL/dh_k h_k| as shares of the text."""
    found = slopes(request, _loss(request))
    return _shares(request, lambda site: found[site].gradient * found[site].state)


@register(
    "allennlp_smooth", summary="AllenNLP's SmoothGrad of the loss, 10 samples", cost="20", paper=ALLENNLP
)
def allennlp_smooth(request: Request) -> Tensor:
    """|sum_k of the mean dL/dh_k| over 10 noisy copies, std 0.01 x (max - min), not times the embedding.

    In BERT-like models the word embeddings go straight into a LayerNorm, and the sum over features of a
    gradient through a LayerNorm is zero. Sums that are zero up to rounding count as zero here; AllenNLP
    itself turns the rounding errors into shares.
    """
    return _shares(request, lambda site: smooth_gradient(request, site, 10, 0.01, objective=_loss(request)))


@register(
    "allennlp_integrated",
    summary="AllenNLP's integrated gradients of the loss, 10 steps",
    cost="20",
    paper=ALLENNLP,
    baseline="zero",
)
def allennlp_integrated(request: Request) -> Tensor:
    """|h . mean gradient| at 0, 0.1, ..., 0.9 of the way from zero, as shares of the text."""
    path = quadrature("left", 10)
    return _shares(request, lambda site: integrated(request, site, *path, objective=_loss(request)))


def preset(
    name: str, method: Callable[..., Tensor], summary: str, cost: str, baselines: Any = None, **options: Any
) -> None:
    """Register a method with Thermostat's settings. Baselines that the user gives override Thermostat's.

    Methods that read gradients work at the output of the whole embedding layer.
    """
    like = METHODS[method.__name__]
    needs, usual = like.needs, like.baseline if baselines is None else str(baselines)
    shared = {"planted": "a token shares the fall of its window with its neighbours"}

    def run(request: Request) -> Tensor:
        against = replace(request, baselines=baselines if request.baselines is None else request.baselines)
        scores = method(against, **options)
        request.note(against.reference)
        return scores

    said = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "its usual options"
    run.__doc__ = f"{method.__name__} with {said}" + ("" if baselines is None else f", {baselines=}.")
    register(
        name,
        summary=f"Thermostat's {summary}",
        cost=cost,
        paper="Feldhus et al. 2021 (Thermostat)",
        needs=needs,
        baseline=usual,
        sites="inputs" if needs == "forward passes" else "embeddings",
        exempt=shared if "window" in options else {},
    )(run)


preset("thermostat_grad_x_activation", grad_x_input, "gradient times the embedding layer's output", "2")
preset(
    "thermostat_integrated",
    integrated_gradients,
    "integrated gradients: 25 steps from pad tokens",
    "50",
    "pad",
    n_steps=25,
)
preset(
    "thermostat_lime", lime, "LIME: 25 samples, pad tokens", "25", "pad", n_samples=25, drop=0.3, penalty=1.0
)
# captum's own baseline is token id 0, whatever that token is
preset("thermostat_occlusion", occlusion, "occlusion: windows of 3 tokens", "one per token", 0, window=3)
preset(
    "thermostat_shapley",
    shapley,
    "Shapley sampling: 25 orders, pad tokens",
    "25 per token",
    "pad",
    n_samples=25,
)
preset("thermostat_gradient_shap", gradient_shap, "GradientShap: 5 samples", "10", n_samples=5)
preset("thermostat_deeplift_shap", deeplift_shap, "DeepLiftShap: zeros and pad tokens as baselines", "8")
