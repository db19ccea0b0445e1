"""Worked cases for the comparison with people."""

import numpy as np
import pytest

import planted
from masklens.errors import MethodError
from masklens.evaluation.plausibility import (
    auprc,
    iou_f1,
    plausibility,
    runs,
    token_f1,
    token_iou,
)


def flags(text):
    return np.array([c == "1" for c in text])


def test_token_measures_by_hand():
    truth, predicted = flags("110100"), flags("100110")
    assert token_f1(truth, predicted) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
    assert token_iou(truth, predicted) == pytest.approx(2 / 4)
    assert token_f1(truth, flags("001000")) == 0
    assert token_iou(flags("00"), flags("00")) == 0


def test_iou_f1_by_hand():
    """ERASER: a predicted span is right if its IOU with a true one is at least 0.5."""
    truth = [(0, 4), (10, 12)]
    assert iou_f1(truth, [(1, 4)]) == pytest.approx(2 * 1 * 0.5 / 1.5)  # IOU 3/4; precision 1, recall 1/2
    assert iou_f1(truth, [(0, 2), (5, 9)]) == pytest.approx(0.5)  # IOU 2/4 counts; precision 1/2, recall 1/2
    assert iou_f1(truth, [(3, 9)]) == 0  # IOU 1/9
    assert iou_f1(truth, []) == 0


def test_auprc_by_hand():
    """Order 1, 0, 1: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1."""
    area = 0.5 * (1 + 1) / 2 + 0 + 0.5 * (1 / 2 + 2 / 3) / 2
    assert auprc(flags("101"), np.array([3.0, 2.0, 1.0])) == pytest.approx(area)
    assert auprc(flags("110"), np.array([3.0, 2.0, 1.0])) == pytest.approx(1)
    # equal scores enter together: one point at precision 1/3, recall 1
    assert auprc(flags("100"), np.array([1.0, 1.0, 1.0])) == pytest.approx((1 + 1 / 3) / 2)
    assert np.isnan(auprc(flags("000"), np.array([1.0, 2.0, 3.0])))


def test_runs():
    assert runs(flags("0110001")) == [(1, 3), (6, 7)]
    assert runs(flags("000")) == []


def test_attributions_against_spans():
    made = planted.subject()
    text = "fast dull plot ."
    good = planted.attribution(made, text, {"fast": 3.0, "plot": 1.0})
    found = plausibility([good, good, good], [[(0, 9)], [(0, 4)], []])
    # two tokens marked, the top two are fast and plot; [fast] is half of [fast dull], [plot] is not
    assert found["token_f1"][0] == pytest.approx(0.5)
    assert found["iou_f1"][0] == pytest.approx(
        2 * 0.5 * 1 / 1.5
    )  # [fast] is half of [fast dull]; [plot] is not
    assert found["token_f1"][1] == found["iou_f1"][1] == found["auprc"][1] == 1
    assert np.isnan(found["token_f1"][2])
    with pytest.raises(MethodError, match="one per text"):
        plausibility([good], [])
