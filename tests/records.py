"""Attributions made by hand, for tests of what is done with them."""

import numpy as np

from masklens.attribution import Attribution


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
