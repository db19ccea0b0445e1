"""Metrics on a model that can be worked out by hand, and against slow second implementations."""

import numpy as np
import pytest

import planted
import tiny
from masklens.errors import MethodError
from masklens.evaluation import faithfulness
from masklens.evaluation.masking import Views
from masklens.evaluation.ranking import Ranking, random_rankings, rank, score_matrix
from planted import sigmoid

TEXT = "fast dull plot enjoyable ."  # logit 2 - 3 + 0.5 + 1 = 0.5: good


@pytest.fixture
def made():
    return planted.subject()


@pytest.fixture
def game(made):
    """Views of the text and the ranking fast, enjoyable, plot, dull, '.'."""
    scores = {"fast": 5.0, "enjoyable": 4.0, "plot": 3.0, "dull": 2.0, ".": 1.0}
    views = Views(made, [TEXT], labels=["good"])
    return views, rank(views, [planted.attribution(made, TEXT, scores)])


def test_hiding_by_hand(game):
    """5 tokens, so 10% rounds to 0 and 30% to 2: 0 0 1 2 2 2 3 4 4 4 5 hidden (halves to even)."""
    found = faithfulness.hiding(*game)
    # logits after hiding 0..5 tokens: 0.5, -1.5, -2.5, -3, 0, 0; a tie (0, 0) is decided as "bad"
    counts = [round(0.1 * i * 5) for i in range(11)]
    right = [1.0 if k == 0 else 0.0 for k in counts]
    assert found.curve.tolist() == right
    assert found.auc == pytest.approx(np.trapezoid(right, np.linspace(0, 1, 11)))


def test_revealing_by_hand(game):
    """Logits after revealing 0..5 tokens: 0, 2, 3, 3.5, 0.5, 0.5."""
    found = faithfulness.revealing(*game)
    right = [0.0 if round(0.1 * i * 5) == 0 else 1.0 for i in range(11)]
    assert found.curve.tolist() == right


def test_least_important_first(game):
    """Hiding '.', then dull: logits 0.5, 0.5, 3.5, 3, 2, 0."""
    found = faithfulness.hiding(*game, order="least_important_first")
    assert found.curve.tolist() == [1.0] * 10 + [0.0]
    with pytest.raises(MethodError, match="most_important_first"):
        faithfulness.hiding(*game, order="best")


def test_comprehensiveness_and_sufficiency_by_hand(game):
    """The top 40% of 5 tokens are fast and enjoyable."""
    whole = sigmoid(0.5)
    assert faithfulness.comprehensiveness(*game, share=0.4)[0] == pytest.approx(
        whole - sigmoid(-2.5), abs=1e-6
    )
    assert faithfulness.sufficiency(*game, share=0.4)[0] == pytest.approx(whole - sigmoid(3), abs=1e-6)
    expected = np.log(sigmoid(-2.5)) - np.log(whole)
    assert faithfulness.log_odds(*game, share=0.4)[0] == pytest.approx(expected, abs=1e-6)


def test_aopc_by_hand(game):
    """ERASER's bins of 5 tokens: 1%, 5% and 10% are 0 tokens, 20% is one, 50% is two (2.5, to even)."""
    whole = sigmoid(0.5)
    without = [0, 0, 0, whole - sigmoid(-1.5), whole - sigmoid(-2.5)]
    only = [whole - sigmoid(x) for x in (0, 0, 0, 2, 3)]
    assert faithfulness.aopc_comprehensiveness(*game)[0] == pytest.approx(np.mean(without), abs=1e-6)
    assert faithfulness.aopc_sufficiency(*game)[0] == pytest.approx(np.mean(only), abs=1e-6)


def test_aopc_by_token_as_ferret(game):
    """ferret averages over the top 1, ..., n tokens."""
    whole = sigmoid(0.5)
    without = [whole - sigmoid(x) for x in (-1.5, -2.5, -3, 0, 0)]
    only = [whole - sigmoid(x) for x in (2, 3, 3.5, 0.5, 0.5)]
    assert faithfulness.aopc_by_token(*game)[0] == pytest.approx(np.mean(without), abs=1e-6)
    assert faithfulness.aopc_sufficiency_by_token(*game)[0] == pytest.approx(np.mean(only), abs=1e-6)


def test_leave_one_out_by_hand(game):
    views, ranking = game
    whole = sigmoid(0.5)
    by_token = dict(zip(views.batch.tokens[0], faithfulness.leave_one_out(views)[0], strict=True))
    assert by_token["fast"] == pytest.approx(whole - sigmoid(-1.5), abs=1e-6)
    assert by_token["dull"] == pytest.approx(whole - sigmoid(3.5), abs=1e-6)
    assert by_token["[CLS]"] == 0
    # effects: fast > enjoyable > plot > . > dull; the ranking has dull before '.': 9 pairs right, 1 wrong
    assert faithfulness.loo_correlation(views, ranking)[0] == pytest.approx(0.8)


def test_divergence_by_hand(game):
    p, q = sigmoid(0.5), sigmoid(3)
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert faithfulness.divergence(*game, share=0.4)[0] == pytest.approx(expected, abs=1e-6)


def test_games_against_a_loop(bert):
    """The whole game once more, one text and one step at a time, straight from the rules."""
    labels = ["negative", "positive", "neutral", "positive", "negative"]
    views = Views(bert, tiny.SENTENCES, labels=labels)
    ranking = random_rankings(views, 1, seed=3)[0]
    hits = np.zeros((len(labels), 11))
    for i, text in enumerate(tiny.SENTENCES):
        batch = bert.encode([text])
        places = [j for j, special in enumerate(batch.special[0].tolist()) if not special]
        best = sorted(places, key=lambda j: (-ranking.scores[i, j], j))
        for step in range(11):
            hidden = best[: round(step / 10 * len(best))]
            inputs = {name: value.clone() for name, value in batch.inputs.items()}
            inputs["input_ids"][0, hidden] = bert.tokenizer.mask_token_id
            inputs["attention_mask"][0, hidden] = 0
            predicted = int(bert.module(**inputs).logits.argmax())
            hits[i, step] = bert.task.labels[predicted] == labels[i]
    assert (faithfulness.hiding(views, ranking).hits == hits).all()


def test_without_labels_accuracy_is_agreement(bert):
    views = Views(bert, tiny.SENTENCES)
    assert views.whole().correct.tolist() == [1.0] * len(tiny.SENTENCES)


def test_ties_go_to_the_earlier_token():
    ranking = Ranking.of(np.array([[9.0, 1.0, 1.0, 2.0]]), np.array([[False, True, True, True]]))
    assert ranking.first(2).tolist() == [[False, True, False, True]]
    assert ranking.bottom(0.34).tolist() == [[False, False, True, False]]


def test_random_orders_do_not_depend_on_other_texts(bert):
    together = random_rankings(Views(bert, tiny.SENTENCES), 2, seed=1)[1]
    alone = random_rankings(Views(bert, tiny.SENTENCES[1:2]), 2, seed=1)[1]
    assert (together.scores[1, : alone.scores.shape[1]] == alone.scores[0]).all()
    other = random_rankings(Views(bert, tiny.SENTENCES), 2, seed=2)[1]
    assert (together.scores != other.scores).any()


def test_scores_over_words_are_carried_to_tokens(bert):
    text = "the unfunniest plots of actingly"
    scores = {token: float(i) for i, token in enumerate(dict.fromkeys(bert.encode([text]).tokens[0]))}
    words = planted.attribution(bert, text, scores).words()
    assert len(words.tokens) < len(bert.encode([text]).tokens[0])
    batch = bert.encode([text])
    found = score_matrix(batch, [words])[0]
    for j, (start, end) in enumerate(batch.offsets[0]):
        holder = [k for k, (s, e) in enumerate(words.offsets) if s <= start < end <= e]
        assert found[j] == (words.scores[0, holder[0]] if holder else 0)


def test_attributions_of_other_texts_are_refused(bert):
    views = Views(bert, tiny.SENTENCES[:1])
    other = planted.attribution(bert, tiny.SENTENCES[1], {})
    with pytest.raises(MethodError, match="order of the texts"):
        rank(views, [other])
