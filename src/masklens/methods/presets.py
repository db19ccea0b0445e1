"""The settings of the tools that the Decoded Grad-CAM paper compares with, under names of their own.

AllenNLP Interpret explains the loss of the predicted label, takes absolute values and lets a text's scores
add up to 1. Thermostat works with captum on the output of the whole embedding layer, or on token ids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import Request, register
from .gradient import (
    grad_x_input,
    integrated_gradients,
    integrated_slopes,
    quadrature,
    slopes,
    smooth_slopes,
    stacked,
)
from .perturbation import deeplift_shap, gradient_shap, lime, occlusion, shapley

ALLENNLP = "Wallace et al. 2019 (AllenNLP Interpret)"
THERMOSTAT = "Feldhus et al. 2021 (Thermostat)"


def _loss(request: Request) -> Any:
    """Minus the log-probability of the target."""
    return lambda output, target: -request.subject.task.log_probability(output, target)


def _shares(request: Request, scores: Tensor) -> Tensor:
    """|scores| as shares of their sum over each text's tokens."""
    size = scores.abs() * request.batch.valid[:, None]
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


@register(
    "allennlp_simple", summary="AllenNLP's gradient of the loss times the embedding", cost="2", paper=ALLENNLP
)
def allennlp_simple(request: Request) -> Tensor:
    """|sum_k dL/dh_k h_k| as shares of the text."""
    found = slopes(request, _loss(request))
    return _shares(
        request, stacked(request, lambda site: _sum_beyond_rounding(found[site].gradient * found[site].state))
    )


@register(
    "allennlp_smooth", summary="AllenNLP's SmoothGrad of the loss, 10 samples", cost="20", paper=ALLENNLP
)
def allennlp_smooth(request: Request) -> Tensor:
    """|sum_k of the mean dL/dh_k| over 10 noisy copies, std 0.01 x (max - min), not times the embedding.

    A sum over features of a gradient that comes through a LayerNorm alone is zero, and there is nothing else
    behind the word embeddings of BERT-like models. Sums that are zero but for rounding count as zero here;
    AllenNLP itself turns the rounding errors into shares.
    """
    found = smooth_slopes(request, n_samples=10, noise=0.01, objective=_loss(request))
    return _shares(request, stacked(request, lambda site: _sum_beyond_rounding(found[site].gradient)))


def _sum_beyond_rounding(values: Tensor) -> Tensor:
    """The sum over features, or 0 where it is no more than what rounding leaves of terms that cancel out."""
    total = values.sum(-1)
    return torch.where(total.abs() > 1e-4 * values.abs().sum(-1), total, 0.0)


@register(
    "allennlp_integrated",
    summary="AllenNLP's integrated gradients of the loss, 10 steps",
    cost="20",
    paper=ALLENNLP,
)
def allennlp_integrated(request: Request) -> Tensor:
    """|h . mean gradient| at 0, 0.1, ..., 0.9 of the way from zero, as shares of the text."""
    found = integrated_slopes(request, *quadrature("left", 10), objective=_loss(request))
    return _shares(
        request, stacked(request, lambda site: _sum_beyond_rounding(found[site].state * found[site].gradient))
    )


def _against(request: Request, baselines: Any) -> Request:
    """The request with other baselines, unless the user gave some."""
    return request if request.baselines is not None else replace(request, baselines=baselines)


@register(
    "thermostat_grad_x_activation",
    summary="Thermostat's gradient times the embedding layer's output",
    cost="2",
    paper=THERMOSTAT,
    sites="embeddings",
)
def thermostat_grad_x_activation(request: Request) -> Tensor:
    """grad_x_input at the output of the whole embedding layer."""
    return grad_x_input(request)


@register(
    "thermostat_integrated",
    summary="Thermostat's integrated gradients: 25 steps from pad tokens",
    cost="50",
    paper=THERMOSTAT,
    sites="embeddings",
)
def thermostat_integrated(request: Request) -> Tensor:
    """integrated_gradients with 25 steps at the output of the whole embedding layer; special tokens stay."""
    return integrated_gradients(_against(request, "pad"), n_steps=25)


@register(
    "thermostat_lime",
    summary="Thermostat's LIME: 25 samples, pad tokens",
    cost="25",
    paper=THERMOSTAT,
    needs="forward passes",
)
def thermostat_lime(request: Request) -> Tensor:
    """lime with 25 samples, 30% of tokens replaced by the pad token, ridge regression."""
    return lime(_against(request, "pad"), n_samples=25, drop=0.3, penalty=1.0)


@register(
    "thermostat_occlusion",
    summary="Thermostat's occlusion: windows of 3 tokens",
    cost="one a token",
    paper=THERMOSTAT,
    needs="forward passes",
    exempt={"planted": "a token shares the fall of its window with its neighbours"},
)
def thermostat_occlusion(request: Request) -> Tensor:
    """occlusion with windows of 3 against token id 0, captum's own default whatever that token is."""
    return occlusion(_against(request, 0), window=3)


@register(
    "thermostat_shapley",
    summary="Thermostat's Shapley sampling: 25 orders, pad tokens",
    cost="25 a token",
    paper=THERMOSTAT,
    needs="forward passes",
)
def thermostat_shapley(request: Request) -> Tensor:
    """shapley with 25 orders against the pad token."""
    return shapley(_against(request, "pad"), n_samples=25)


@register(
    "thermostat_gradient_shap",
    summary="Thermostat's GradientShap: 5 samples",
    cost="10",
    paper=THERMOSTAT,
    sites="embeddings",
)
def thermostat_gradient_shap(request: Request) -> Tensor:
    """gradient_shap with 5 samples at the output of the whole embedding layer."""
    return gradient_shap(request, n_samples=5)


@register(
    "thermostat_deeplift_shap",
    summary="Thermostat's DeepLiftShap: zeros and pad tokens as baselines",
    cost="8",
    paper=THERMOSTAT,
    needs="gradients; captum",
    sites="embeddings",
)
def thermostat_deeplift_shap(request: Request) -> Tensor:
    """deeplift_shap at the output of the whole embedding layer."""
    return deeplift_shap(request)
