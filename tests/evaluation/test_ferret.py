"""Our metrics against ferret's own evaluators, on the same texts and scores.

data/ferret.json was made by benchmarks/peers/metrics.py: ferret's values, and what the model said to
every text that ferret asked it about.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from masklens import Subject
from masklens.evaluation import faithfulness
from masklens.evaluation.evaluate import METRICS
from masklens.evaluation.masking import Readings, Views
from masklens.evaluation.plausibility import auprc, token_f1, token_iou
from masklens.evaluation.ranking import Ranking

MADE = json.loads((Path(__file__).parent / "data" / "ferret.json").read_text(encoding="utf-8"))
ROWS = MADE["texts"]
FAITHFUL = {
    "aopc_compr": faithfulness.ferret_comprehensiveness,
    "aopc_suff": faithfulness.ferret_sufficiency,
    "aopc_compr_every": faithfulness.aopc_by_token,
    "aopc_suff_every": faithfulness.aopc_sufficiency_by_token,
    "taucorr_loo": faithfulness.loo_correlation,
}
MARKED = 5
"""as many top tokens does ferret compare with what people marked"""
WIDTH = max(len(row["tokens"]) for row in ROWS)


def padded(name):
    """(texts, tokens) with 0 at padding."""
    return np.array([row[name] + [0] * (WIDTH - len(row[name])) for row in ROWS])


def removable():
    lengths = np.array([len(row["tokens"]) for row in ROWS])[:, None]
    place = np.arange(WIDTH)[None, :]
    return (place > 0) & (place < lengths - 1)


class Stored:
    """Views of a model that only knows what it once said."""

    removable = removable()

    def read(self, rows, keep):
        said = np.array([self._said(ROWS[row], k) for row, k in zip(rows, keep, strict=True)])
        return Readings(np.log(said), *[np.full(len(said), np.nan)] * 4)

    def _said(self, row, keep):
        left = [t for t, k in zip(row["tokens"][1:-1], keep[1:], strict=False) if k]
        return row["said"][" ".join(left)]

    def read_steps(self, keep):
        texts, steps, tokens = keep.shape
        return self.read(np.repeat(np.arange(texts), steps), keep.reshape(-1, tokens)).reshape(texts, steps)

    def whole(self):
        return self.read(np.arange(len(ROWS)), self.removable)


def theirs(name):
    return np.array([row["ferret"][name] for row in ROWS])


def ranking():
    return Ranking.of(padded("scores"), removable())


@pytest.mark.parametrize("name", FAITHFUL)
def test_faithfulness_from_what_the_model_said_to_ferret(name):
    found = FAITHFUL[name](Stored(), ranking())
    np.testing.assert_allclose(found, theirs(name), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", FAITHFUL)
def test_faithfulness_with_the_model(name, ferret_views):
    assert [list(tokens) for tokens in ferret_views.batch.tokens] == [row["tokens"] for row in ROWS]
    found = FAITHFUL[name](ferret_views, ranking())
    np.testing.assert_allclose(found, theirs(name), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def ferret_views(model_folder):
    """In double precision, as ferret's values were computed; ferret removes tokens by cutting them out."""
    subject = Subject.from_pretrained(model_folder(MADE["checkpoint"]), dtype="float64")
    targets = [row["target"] for row in ROWS]
    return Views(subject, [row["text"] for row in ROWS], targets=targets, how="drop")


def test_plausibility():
    """ferret takes the top 5 with a score above 0, and scores below 0 as 0."""
    chosen = ranking().first(MARKED) & (padded("scores") > 0)
    truth = padded("marks").astype(bool)
    for i, where in enumerate(removable()):
        here = ROWS[i]["ferret"]
        marks, top, scores = truth[i][where], chosen[i][where], np.maximum(padded("scores")[i][where], 0)
        assert token_f1(marks, top) == pytest.approx(here["token_f1_plau"], abs=1e-9)
        assert token_iou(marks, top) == pytest.approx(here["token_iou_plau"], abs=1e-9)
        assert auprc(marks, scores) == pytest.approx(here["auprc_plau"], abs=1e-9)


def test_no_score_above_zero_gives_the_values_that_ferret_gives():
    below = Ranking.of(-np.abs(padded("scores")) - 1, removable())
    assert (faithfulness.ferret_comprehensiveness(Stored(), below) == 0).all()
    assert (faithfulness.ferret_sufficiency(Stored(), below) == 1).all()


def test_the_metrics_can_be_asked_for():
    assert METRICS["ferret_comprehensiveness"].better == "higher"
    assert METRICS["ferret_sufficiency"].better == "lower"
