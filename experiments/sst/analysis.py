"""What kinds of tokens the sentiment model keeps, and for how long (DiffMask, Figures 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from masklens import analysis
from masklens.attribution import Attribution
from masklens.methods.explain import explain
from masklens.model.subject import Subject

from ..measures import corpus_statistics
from .treebank import LABELS, Sentence

SCHULZ: dict[str, Any] = {"n_steps": 50, "lr": 0.1, "weight": 10.0}
"""the paper's settings for SST"""
STATISTICS_TEXTS = 2000


def analyse(found: Sequence[Attribution], sentences: Sequence[Sentence], nlp: Any = None) -> dict[str, Any]:
    """The number of layers that keep a token, by its word's sentiment, by part of speech and by what the
    model predicts for its text, and the share of tokens kept at each layer; and how often the last state of
    the first token ([CLS]) scores highest."""
    by_sentiment = analysis.by_label(found, [s.spans for s in sentences], by="sentiment of the word")
    predicted = [[(0, len(s.text), a.prediction)] for a, s in zip(found, sentences, strict=True)]
    return {
        "texts": len(found),
        "sentiment": by_sentiment.ordered(LABELS).to_dict(),
        "prediction": analysis.by_label(
            found, predicted, special=False, by="prediction for the text"
        ).to_dict(),
        "part_of_speech": analysis.by_part_of_speech(found, nlp=nlp).to_dict(),
        "layers": analysis.by_layer(found).to_dict(),
        "first_token": first_token_largest(found),
    }


def first_token_largest(found: Sequence[Attribution]) -> dict[str, float]:
    """The share of texts in which no score is larger than the first token's at the last site: among the
    tokens of that site, and among all tokens of all sites. Gates at their limit are equally large."""
    first = np.array([a.scores[-1, 0] for a in found])
    return {
        "last_site": float(np.mean(first >= [a.scores[-1].max() for a in found])),
        "all_sites": float(np.mean(first >= [a.scores.max() for a in found])),
    }


def bottleneck(subject: Subject, texts: Sequence[str], train: Sequence[str], size: int) -> dict[str, Any]:
    """The same for the attributions of Schulz et al. (2020), at every site."""
    options = SCHULZ | {"statistics": corpus_statistics(subject, train, size)}
    found = explain(subject, texts, "information_bottleneck", sites="all", batch_size=size, **options)
    return {"texts": len(found), "first_token": first_token_largest(found), "options": SCHULZ}
