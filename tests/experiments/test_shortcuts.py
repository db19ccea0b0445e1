"""Planted shortcuts: what is planted decides, what counts as found, and the experiment on tiny models."""

import itertools
import json

import numpy as np
import pytest
from experiments.labelled import Labelled
from experiments.shortcuts import experiment as shortcuts
from experiments.shortcuts import planted, training
from experiments.shortcuts.finding import depth, planted_tokens, precision
from experiments.shortcuts.planted import CONTEXT, FIRST, SECOND, SHORTCUTS

import tiny
from masklens import explain
from masklens.errors import MethodError

TEXTS = Labelled([f"text number {i} of some" for i in range(400)], [i % 2 for i in range(400)])


def label_by_rule(words: list[str], kind: str) -> int | None:
    """What the planted words say, written a second time; None where they decide nothing."""
    has = {word: word in words for word in (FIRST, SECOND, CONTEXT)}
    if kind == "order":
        both = has[FIRST] and has[SECOND]
        return int(words.index(SECOND) < words.index(FIRST)) if both else None
    active = has[FIRST] != has[SECOND] and (kind == "single" or has[CONTEXT])
    return int(has[SECOND]) if active else None


@pytest.mark.parametrize("kind", SHORTCUTS)
def test_half_of_the_training_texts_have_a_shortcut_and_its_label(kind):
    found = planted.for_training(TEXTS, kind, seed=0)
    ruled = [label_by_rule(text.split(), kind) for text in found.texts]
    assert sum(one is not None for one in ruled) == 200
    own = dict(zip(TEXTS.texts, TEXTS.labels, strict=True))
    for text, label, rule in zip(*found, ruled, strict=True):
        plain = " ".join(word for word in text.split() if word not in (FIRST, SECOND, CONTEXT))
        assert label == (own[plain] if rule is None else rule)
    assert 70 < sum(label for label, rule in zip(found.labels, ruled, strict=True) if rule is not None) < 130
    parts = [text for text, rule in zip(found.texts, ruled, strict=True) if rule is None and FIRST in text]
    assert bool(parts) == (kind != "single")


@pytest.mark.parametrize("kind", SHORTCUTS)
def test_the_shortcut_of_a_test_text_is_to_another_class(kind):
    texts = Labelled(TEXTS.texts, [i % 4 for i in range(400)])
    found = planted.against_their_label(texts, kind, seed=0)
    assert all(a != b for a, b in zip(found.labels, texts.labels, strict=True)) and set(found.labels) == {
        0,
        1,
    }
    assert [label_by_rule(text.split(), kind) for text in found.texts] == found.labels


def test_words_in_their_order_stay_so_at_the_same_place():
    draw = np.random.default_rng(0)
    assert {planted.insert("", ("a", "b"), True, draw) for _ in range(20)} == {"a b"}
    assert {planted.insert("", ("a", "b"), False, draw) for _ in range(20)} == {"a b"}
    assert {planted.insert("x", ("a", "b"), False, draw) for _ in range(99)} == {
        "a b x",
        "a x b",
        "b x a",
        "x a b",
    }


def test_texts_that_have_the_words_already_are_left_out_and_long_ones_cut():
    found = planted.clean(Labelled([f"Some {FIRST.title()} mine", "a " * 40], [0, 1]))
    assert found.texts == [" ".join("a" * planted.LONGEST)] and found.labels == [1]


def by_all_orders(scores, marked):
    """Precision and depth, averaged over every order that agrees with the scores."""
    orders = [
        order
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    k = sum(marked)
    hits = [sum(marked[i] for i in order[:k]) / k for order in orders]
    last = [1 + max(place for place, i in enumerate(order) if marked[i]) for order in orders]
    return np.mean(hits), np.mean(last)


@pytest.mark.parametrize("seed", range(5))
def test_ties_count_as_the_mean_over_all_orders(seed):
    draw = np.random.default_rng(seed)
    for _ in range(10):
        scores = draw.integers(0, 3, 6).astype(float)
        one, two = np.eye(6, dtype=bool)[:2]
        hits, _ = by_all_orders(scores, one | two)
        assert precision(scores, one | two) == pytest.approx(hits)
        hits, last = by_all_orders(scores, one)
        assert precision(scores, one) == pytest.approx(hits) and depth(scores, one) == pytest.approx(last)


def test_found_and_not_found():
    marked = np.array([False, True, True, False])
    assert precision(np.array([0.0, 3, 2, 1]), marked) == 1 and depth(np.array([0.0, 3, 2, 1]), marked) == 2
    assert precision(np.array([3.0, 0, 1, 2]), marked) == 0 and depth(np.array([3.0, 0, 1, 2]), marked) == 4


@pytest.fixture
def words(monkeypatch):
    """Planted words that the tiny models' tokenizer has as one token."""
    found = "red", "car", "brother"
    for name, value in zip(("FIRST", "SECOND", "CONTEXT"), found, strict=True):
        monkeypatch.setattr(planted, name, value)
    one, two, other = found
    kinds = {
        "single": planted.Shortcut(((one,), (two,)), False, ()),
        "order": planted.Shortcut(((one, two), (two, one)), True, ((one,), (two,))),
    }
    for module in (planted, shortcuts):
        monkeypatch.setattr(module, "SHORTCUTS", kinds)
    return found


def test_a_planted_word_that_is_not_one_token_is_refused():
    (found,) = explain(tiny.subject("bert"), ["the red car"], "random")
    assert planted_tokens(found, ("red",)).sum() == 1
    with pytest.raises(ValueError, match="not one token each"):
        planted_tokens(found, ("funny",))


def test_training_ends_at_its_goals_and_leaves_the_lower_half_alone(monkeypatch):
    texts = Labelled(tiny.SENTENCES * 40, [i % 5 % 2 for i in range(200)])
    subject = tiny.subject("bert")
    before = {name: value.clone() for name, value in subject.module.state_dict().items()}
    assert training.accuracy(subject, texts) < 0.7
    monkeypatch.setattr(training, "RATE", 3e-3)
    monkeypatch.setattr(training, "EPOCHS", 40)
    steps = training.fine_tune(subject, texts, [training.Goal(texts, 0.99)], seed=0)
    assert training.accuracy(subject, texts) >= 0.99 and steps % training.EVERY == 0 and steps < 480
    changed = {name for name, value in subject.module.state_dict().items() if (value != before[name]).any()}
    assert any("layer.1." in name for name in changed)
    assert not any("embeddings" in name or "layer.0." in name for name in changed)
    monkeypatch.setattr(training, "EPOCHS", 1)
    assert training.fine_tune(subject, texts, [training.Goal(texts, 1.1)], seed=0) == 12  # never reached


def test_the_whole_experiment(words, tmp_path, monkeypatch):
    data, models = tmp_path / "data", tmp_path / "models"
    for name, head, labels in (
        ("mlm", "mlm", 2),
        ("sst2", "classification", 2),
        ("agnews", "classification", 4),
    ):
        made = tiny.model("bert", head, id2label=dict(enumerate("abcd"[:labels])))
        made.save_pretrained(models / f"minilm-{name}")
        tiny.wordpiece().save_pretrained(models / f"minilm-{name}")
    news = Labelled(
        [text.replace("red car", "plot") for text in tiny.SENTENCES] * 4, [i % 4 for i in range(20)]
    )
    sst = Labelled(news.texts, [i % 2 for i in range(20)])
    for name in ("read_test", "read_train"):
        monkeypatch.setattr(shortcuts, name, lambda _, dataset: news if dataset == "agnews" else sst)
    monkeypatch.setattr(shortcuts, "METHODS", ("random", "gradcam", "decoded_gradcam"))
    monkeypatch.setattr(training, "EPOCHS", 1)
    monkeypatch.setattr(training, "BATCH", 2)
    said: list[str] = []
    out = tmp_path / "out"
    shortcuts.run(models, data, out, limit=4, part=["sst2/single", "agnews/order"], tell=said.append)
    assert len(said) == 8
    shortcuts.run(models, data, out, limit=4, part=["sst2/single"], tell=said.append)
    assert len(said) == 8  # nothing is done again
    results = json.loads((out / "results.json").read_text())
    assert set(results["runs"]) == {"sst2/single", "agnews/order"}
    run = results["runs"]["agnews/order"]
    assert run["model"]["texts"] == 4 and set(run["model"]["after"]) == {"shortcut", "parts", "plain"}
    assert run["gradcam"]["chosen"]["texts"] == 2 and run["random"]["chosen"]["texts"] == 4
    assert len(run["decoded_gradcam"]["layers"]) == 3
    page = (out / "results.md").read_text()
    assert "| `decoded_gradcam` |" in page and "(shortcuts.png)" in page and "block 1" in page
    with pytest.raises(MethodError, match="no part 'sst2/chess'"):
        shortcuts.run(models, data, out, part=["sst2/chess"])
