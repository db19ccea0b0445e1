"""Attributions made by hand, for tests of what is done with them."""

from dataclasses import replace

import numpy as np

from masklens.attribution import Attribution
from masklens.records.verification import Verification


def make(tokens=("[CLS]", "good", "[SEP]"), scores=None, text="good", method="gradient", settings=None):
    """An attribution over the tokens; by default three tokens at two sites."""
    scores = np.array([[0.0, 4.0, -1.0], [0.5, 2.0, 0.0]]) if scores is None else scores
    n = len(tokens)
    return Attribution(
        text=text,
        tokens=tokens,
        offsets=((0, 0),) * n,
        special=tuple(token.startswith("[") for token in tokens),
        segments=(0,) * n,
        sites=tuple(range(len(scores))),
        scores=scores,
        prediction="positive",
        target="positive",
        method=method,
        settings=settings or {},
    )


def make_pair(sites=1, parts=("question", "passage")):
    """An attribution of a question and a passage: three tokens of the one, four of the other."""
    tokens = ("[CLS]", "who", "[SEP]", "she", "won", "it", "[SEP]")
    one = make(tokens=tokens, scores=np.arange(7.0 * sites).reshape(sites, 7), text=("who", "she won it"))
    return replace(one, segments=(0, 0, 0, 1, 1, 1, 1), parts=parts)


def proved(**more):
    """What a verification found: one of two tokens suffices, unless something else is said."""
    found = dict(
        site=1,
        tokens=2,
        needed=1,
        divergence=0.25,
        prediction_kept=True,
        probability_before=0.97,
        probability_after=0.95,
        verdict="sufficient",
        p_value=0.08,
        p_reversed=1.0,
        random_needed=2.0,
        removed=(1,),
    )
    return Verification(**(found | more))
