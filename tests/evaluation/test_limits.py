"""Area scores between the best and the worst order: against every order there is, and across models."""

from itertools import permutations

import numpy as np
import pytest

import planted
from masklens import evaluate
from masklens.evaluation import faithfulness, limits
from masklens.evaluation.evaluate import METRICS
from masklens.evaluation.limits import find_limits, scaled
from masklens.evaluation.masking import Views
from masklens.evaluation.ranking import Ranking, random_rankings

SHORT = ["fast dull plot enjoyable .", "a dull plot", "the plot is fast"]
LONG = ["fast dull plot enjoyable . a dull dull plot is fast fast .", *SHORT]
SUBJECTS = {"bag of words": planted.subject, "transformer": planted.transformer}


def every_order(views, text):
    """Rankings of one text, one for each order of its tokens; the other texts are in their own order."""
    places = np.nonzero(views.removable[text])[0]
    for order in permutations(places):
        scores = np.zeros(views.removable.shape)
        scores[text, list(order)] = -np.arange(len(order))
        yield Ranking.of(scores, views.removable)


@pytest.mark.parametrize("made", SUBJECTS.values(), ids=SUBJECTS)
@pytest.mark.parametrize("name", ["aopc_by_token", "aopc_sufficiency_by_token"])
def test_short_texts_have_the_limits_of_all_orders(made, name):
    views, metric = Views(made(), SHORT), METRICS[name]
    best, worst = (metric.function(views, order) for order in find_limits(views)[metric.area])
    low, high = (worst, best) if metric.better == "higher" else (best, worst)
    for text in range(len(SHORT)):
        values = [metric.function(views, ranking)[text] for ranking in every_order(views, text)]
        assert (low[text], high[text]) == pytest.approx((min(values), max(values)), abs=1e-7)
        assert max(values) > min(values)


def test_a_long_text_is_searched_better_than_by_random_orders():
    views = Views(planted.transformer(), LONG)
    best, worst = find_limits(views)["top"]
    high, low = (faithfulness.aopc_by_token(views, order) for order in (best, worst))
    drawn = np.stack([faithfulness.aopc_by_token(views, one) for one in random_rankings(views, 200)])
    assert (drawn <= high + 1e-9).all() and (drawn >= low - 1e-9).all()
    assert (drawn.max(0) < high)[0] and (drawn.min(0) > low)[0], "13 tokens have billions of orders"


def test_the_search_of_a_bag_of_words_is_exact_at_any_length(monkeypatch):
    """The order by weight is best and its reverse worst, however narrow the search."""
    monkeypatch.setattr(limits, "WIDTH", 1)
    made = planted.subject()
    views = Views(made, LONG[:1])
    weights = made.module.weight.weight.detach()[views.batch.inputs["input_ids"], 0].numpy()
    sign = 1 if views.whole().probability[0] > 0.5 and views.target[0] == 1 else -1
    for order, scores in zip(find_limits(views)["top"], (sign * weights, -sign * weights), strict=True):
        known = Ranking.of(scores, views.removable)
        a, b = (faithfulness.aopc_by_token(views, one) for one in (order, known))
        assert a == pytest.approx(b, abs=1e-9)


def test_values_are_scaled_and_equal_limits_leave_a_text_out():
    found = scaled(np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.1, 0.3]), np.array([0.2, 0.6, 0.3]))
    assert found[:2] == pytest.approx([0.0, 0.8]) and np.isnan(found[2])


def sets_of(made, texts):
    weights = {
        "weights": planted.WEIGHTS,
        "against": {name: -value for name, value in planted.WEIGHTS.items()},
    }
    return {
        name: [planted.attribution(made, text, by_token) for text in texts]
        for name, by_token in weights.items()
    }


AREAS = [name for name, metric in METRICS.items() if metric.area]


def test_the_best_order_has_1_and_the_worst_0():
    """All texts are good, so that the weights are the best order and their negation the worst."""
    made, texts = planted.subject(), ["fast dull plot enjoyable .", "fast enjoyable plot a"]
    table = evaluate(made, sets_of(made, texts), metrics=AREAS, random_draws=5, normalised=True)
    for name in ("aopc_by_token", "aopc_sufficiency_by_token"):
        high, low = ("weights", "against")[:: 1 if METRICS[name].better == "higher" else -1]
        assert table[high][name].value == pytest.approx(1) and table[low][name].value == pytest.approx(0)
        assert 0.1 < table["random"][name].value < 0.9
    assert table.settings["normalised"] and "revealing" in table.curves["weights"]
    plain = evaluate(made, sets_of(made, texts), metrics=[*AREAS, "log_odds"], random_draws=0)
    assert plain["weights"]["aopc_by_token"].value < 0.9 and not plain.settings["normalised"]
    assert plain.curves["weights"] == table.curves["weights"], "curves are never scaled"


def test_two_models_become_comparable():
    """The same model with a smaller logit: its areas shrink, the normalised ones hardly change."""
    found = {}
    for size in (1.0, 0.2):
        made = planted.subject()
        made.module.weight.weight.data *= size
        options = {"metrics": ["aopc_by_token"], "random_draws": 20}
        for normalised in (False, True):
            table = evaluate(
                made, sets_of(made, ["fast enjoyable plot a ."]), normalised=normalised, **options
            )
            found[size, normalised] = table["random"]["aopc_by_token"].value
    assert found[1.0, False] > 2 * found[0.2, False] > 0
    assert found[1.0, True] == pytest.approx(found[0.2, True], abs=0.1)
