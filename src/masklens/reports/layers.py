"""What each layer would predict, for reports, the page and the terminal (see methods/logit_lens.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..attribution import Attribution, Text
from ..errors import MasklensError
from ..progress import stage
from ..records.generation import Guess
from .labels import visible

if TYPE_CHECKING:
    from ..methods.logit_lens import LayerPredictions


def read_layers(subject: Any, attributions: Sequence[Attribution]) -> dict[Text, LayerPredictions]:
    """What each layer would predict, once for each text. A text that cannot be read this way is left out."""
    from ..methods.logit_lens import has_layer_predictions, layer_predictions
    from ..model.memory import BatchSize, tokens_at_once
    from ..model.subject import as_subject

    subject = as_subject(subject)
    if not has_layer_predictions(subject.task):
        return {}
    lengths = {one.text: len(one.tokens) for one in attributions}
    texts = list(lengths)
    found: dict[Text, LayerPredictions] = {}

    def work(rows: list[int]) -> list[LayerPredictions]:
        try:
            return layer_predictions(subject, [texts[i] for i in rows])
        except MasklensError:
            if len(rows) > 1:
                raise  # the rows are halved, and only the text that is wrong is left out
            return []

    size = BatchSize(None, tokens_at_once(subject.module, subject.device))
    with stage("reading the layers", len(texts)) as update:
        for rows in size.cut(list(lengths.values())):
            for some, made in size.within_memory(work, rows, also=(MasklensError,)):
                found |= {one.text: one for one in made}
                update(advance=len(some))
    return found


def layers_data(found: LayerPredictions | None) -> dict[str, Any]:
    """For the viewer: the predictions of the layers below a text; empty if there are none."""
    if found is None:
        return {}
    guesses = [Guess(*one) for one in zip(found.predictions, found.probabilities, strict=True)]
    about = {"piece": visible(found.answer), "note": found.note}
    return {"logit_lens_sites": list(found.sites), "layers": about | lens_data(guesses, found.settled)}


def lens_data(guesses: Sequence[Guess], settled: int | None) -> dict[str, Any]:
    """For the viewer: the guess at each layer, and the layer from which the answer stays on top."""
    return {"lens": guess_data(guesses), "settled": settled}


def guess_data(guesses: Sequence[Guess]) -> list[list[Any]]:
    """For the viewer: tokens or classes with their probabilities."""
    return [[visible(guess.token), round(guess.probability, 4)] for guess in guesses]
