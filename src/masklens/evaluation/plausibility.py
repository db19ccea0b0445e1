"""Does an explanation look right to people? Against human rationales, as in ERASER (DeYoung et al. 2020).

Plausible is not faithful: a model may be right for reasons that no person would give.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..attribution import Attribution
from ..errors import MethodError
from ..words import Span, best_shared


def token_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of the predicted tokens; both are bool (tokens,)."""
    shared = float((truth & predicted).sum())
    return 2 * shared / float(truth.sum() + predicted.sum()) if shared else 0.0


def token_iou(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Tokens in both over tokens in either."""
    either = float((truth | predicted).sum())
    return float((truth & predicted).sum()) / either if either else 0.0


def iou_f1(truth: Sequence[Span], predicted: Sequence[Span], threshold: float = 0.5) -> float:
    """F1 of the predicted spans; one is right if its IOU with a true one is at least the threshold."""
    right = sum(max((_iou(span, true) for true in truth), default=0.0) >= threshold for span in predicted)
    if not right:
        return 0.0
    precision, recall = right / len(predicted), right / len(truth)
    return 2 * precision * recall / (precision + recall)


def _iou(a: Span, b: Span) -> float:
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / (a[1] - a[0] + b[1] - b[0] - shared) if shared else 0.0


def auprc(truth: np.ndarray, scores: np.ndarray) -> float:
    """Area under the precision-recall curve, by trapezoids; nan where people marked nothing.

    Tokens with equal scores enter together. The curve starts at recall 0 with precision 1.
    """
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truth[order])
    ends = np.append(np.nonzero(np.diff(scores[order]))[0], len(order) - 1)
    precision = np.append(1.0, hits[ends] / (ends + 1))
    recall = np.append(0.0, hits[ends] / hits[-1])
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


def marked(attribution: Attribution, spans: Sequence[Span]) -> np.ndarray:
    """(tokens,) bool: the tokens that share a character with a span; never a special token."""
    return (best_shared(attribution.offsets, spans) >= 0) & ~np.array(attribution.special)


def runs(chosen: np.ndarray) -> list[Span]:
    """Spans of neighbouring chosen tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    return [(int(s), int(e)) for s, e in edges.reshape(-1, 2)]


def plausibility(
    attributions: Sequence[Attribution], rationales: Sequence[Sequence[Span]], site: int | None = None
) -> dict[str, np.ndarray]:
    """IOU-F1, token-F1 and AUPRC of each text; as many top tokens are taken as people marked.

    `rationales` holds the character spans that people marked in each text. Values are nan where they marked
    nothing that the model has read.
    """
    if len(attributions) != len(rationales):
        raise MethodError(
            f"{len(rationales)} rationales for {len(attributions)} attributions; give one per text"
        )
    rows = [_compare(a, spans, site) for a, spans in zip(attributions, rationales, strict=True)]
    names = ("iou_f1", "token_f1", "auprc")
    return dict(zip(names, np.array(rows).reshape(-1, 3).T, strict=True))


def _compare(attribution: Attribution, spans: Sequence[Span], site: int | None) -> tuple[float, float, float]:
    text = ~np.array(attribution.special)
    truth = marked(attribution, spans)[text]
    if not truth.any():
        return (float("nan"),) * 3
    scores = attribution.at(attribution.sites[-1] if site is None else site)[text]
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[np.argsort(-scores, kind="stable")[: int(truth.sum())]] = True
    return iou_f1(runs(truth), runs(chosen)), token_f1(truth, chosen), auprc(truth, scores)
