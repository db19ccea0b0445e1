"""Erasure against brute force over every subset, and the shared-prefix search against the plain one."""

from __future__ import annotations

import time
from itertools import chain, combinations

import pytest
import torch
from tests.methods.tiny_models import TEXTS, WORDS, GruClassifier, encode_words

from masklens import explain
from masklens.errors import MethodError
from masklens.methods import erasure as module
from masklens.methods.erasure import erasure
from masklens.methods.recurrent import Recurrence, find_recurrence, members
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import Classification


def gru_subject(**sizes) -> Subject:
    net = GruClassifier(**sizes).eval()
    return Subject.from_module(net, [Point(net.embed)], Classification(["a", "b", "c"]), encode_words)


def brute_force(subject, text, site, enough, smallest=1):
    """Share of the smallest sufficient sets that keep each token, by trying all 2^n sets one at a time."""
    batch = subject.encode([text])
    reference, states = subject.states(batch, [site])
    free = (batch.valid & ~batch.special)[0].nonzero()[:, 0].tolist()
    every = chain.from_iterable(combinations(free, k) for k in range(smallest, len(free) + 1))
    good = []
    for kept in every:
        edited = states[site].clone()
        edited[0, [t for t in free if t not in kept]] = 0
        if enough(reference, subject.run(batch, replace={site: edited}).output):
            good.append(kept)
    fewest = min(map(len, good))
    optima = [kept for kept in good if len(kept) == fewest]
    return torch.tensor([sum(t in kept for kept in optima) / len(optima) for t in range(batch.shape[1])])


def same_class(reference, output):
    return bool(reference.argmax() == output.argmax())


@pytest.mark.parametrize("site", [0, 2])
@pytest.mark.parametrize("criterion", ["argmax", "divergence"])
def test_the_optimum_is_that_of_brute_force(ask, subject, site, criterion):
    near = lambda r, o: bool(subject.task.divergence(r, o) <= 0.05)  # noqa: E731
    enough = same_class if criterion == "argmax" else near
    request = ask((site,))
    scores = erasure(request, criterion=criterion, margin=0.05, internal_batch_size=5)
    for row, text in enumerate(TEXTS):
        expected = brute_force(subject, text, site, enough)
        torch.testing.assert_close(scores[row, 0, : len(expected)], expected)
    assert request.notes[1][f"size@{site}"] >= 1


def test_the_planted_word_is_the_only_one_needed(ask, planted):
    scores = erasure(ask((1,), on=planted), criterion="divergence", margin=1e-6)
    for row, text in enumerate(TEXTS):
        assert scores[row, 0, : len(text.split())].tolist() == [
            float(i == 1) for i in range(len(text.split()))
        ]


def test_the_empty_set_may_be_the_answer(ask, subject):
    state_is_ignored = ask((0,), texts=["dull film"])
    scores = erasure(state_is_ignored, smallest=0)
    expected = brute_force(subject, "dull film", 0, same_class, smallest=0)
    torch.testing.assert_close(scores[0, 0], expected)


def test_a_wide_beam_is_exact_and_a_narrow_one_is_enough(ask, subject):
    exact = erasure(ask((0,)), criterion="divergence", margin=0.02)
    torch.testing.assert_close(erasure(ask((0,)), criterion="divergence", margin=0.02, beam=1000), exact)
    request = ask((0,))
    narrow = erasure(request, criterion="divergence", margin=0.02, beam=1)
    state = subject.states(request.batch, [0]).states[0]
    for row in range(len(TEXTS)):
        if request.notes[row]["optima@0"] == 1:
            keep = (narrow[row, 0] > 0) | request.batch.special[row] | ~request.batch.valid[row]
            edited = torch.where(keep[:, None], state[row], 0.0)[None]
            output = subject.run(request.batch.take([row]), replace={0: edited}).output
            assert float(subject.task.divergence(request.reference[row : row + 1], output)) <= 0.02


def test_a_search_beyond_its_budget_says_so(ask):
    request = ask((0,), texts=TEXTS[:1])
    with pytest.warns(UserWarning, match="budget"):
        scores = erasure(request, criterion="divergence", margin=-1.0, budget=20)
    assert scores[0, 0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert "6 sets tried" in request.notes[0]["erasure@0"]


def test_the_record_says_what_was_found(subject):
    one = explain(subject, TEXTS[1], method="erasure")[0]
    assert one.settings["size@0"] >= 1 and one.settings["optima@0"] >= 1
    assert one.scores.sum() == pytest.approx(one.settings["size@0"])


SENTENCE = " ".join(WORDS)  # 15 words


@pytest.mark.parametrize("packed", [True, False])
def test_shared_prefixes_give_the_same_optima(ask, packed, monkeypatch):
    subject = gru_subject(packed=packed)
    texts = [SENTENCE, " ".join(reversed(WORDS))]
    used = []
    levels = Recurrence.levels
    monkeypatch.setattr(Recurrence, "levels", lambda self, *args: (used.append(1), levels(self, *args))[1])
    options = {"criterion": "divergence", "margin": 0.05}
    fast = erasure(ask((0,), texts=texts, on=subject), **options)
    assert len(used) == 2
    monkeypatch.setattr(module, "find_recurrence", lambda *_: None)
    torch.testing.assert_close(fast, erasure(ask((0,), texts=texts, on=subject), **options))


def test_levels_hold_every_subset_once_with_the_gru_state(ask):
    subject = gru_subject()
    batch = subject.encode(["a fast funny highly movie"])
    state = subject.states(batch, [0]).states[0][0]
    recurrence = Recurrence(subject.module.gru, subject.module.head)
    free = torch.tensor([True, False, True, True, True])
    with torch.no_grad():
        for size, level in enumerate(recurrence.levels(state, torch.zeros_like(state), free)):
            kept = members(level.codes, 5)
            assert {tuple(row.nonzero()[:, 0].tolist()) for row in kept} == set(
                combinations([0, 2, 3, 4], size)
            )
            for keep, hidden in zip(kept, level.hidden, strict=True):
                edited = torch.where((keep | ~free)[:, None], state, 0.0)
                torch.testing.assert_close(hidden, subject.module.gru(edited[None])[1][0, 0])
    assert size == 4


def test_a_model_that_is_more_than_a_gru_and_a_head_is_not_taken_apart(ask, subject):
    class Doubled(GruClassifier):
        def forward(self, ids):
            return 2 * super().forward(ids)

    net = Doubled().eval()
    doubled = Subject.from_module(net, [Point(net.embed)], Classification(["a", "b", "c"]), encode_words)
    for other in (doubled, subject):
        request = ask((0,), on=other)
        state = other.states(request.batch, [0]).states[0]
        assert find_recurrence(request, 0, state, torch.zeros_like(state)) is None


@pytest.mark.slow
def test_shared_prefixes_are_five_times_faster_on_twenty_words(ask, monkeypatch):
    subject = gru_subject(width=128, hidden=128)
    text = " ".join([*WORDS, *WORDS[:5]])

    def search(margin):
        request = ask((0,), texts=[text], on=subject)
        start = time.perf_counter()
        scores = erasure(request, criterion="divergence", margin=margin, internal_batch_size=512)
        return scores, time.perf_counter() - start, request.notes[0]["size@0"]

    margin = next(m for m in torch.logspace(-1, -6, 60).tolist() if search(m)[2] == 6)
    fast, fast_time, _ = search(margin)
    monkeypatch.setattr(module, "find_recurrence", lambda *_: None)
    slow, slow_time, _ = search(margin)
    torch.testing.assert_close(fast, slow)
    assert slow_time > 5 * fast_time


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "accuracy"}, "'argmax' or 'divergence'"),
        ({"beam": 0}, "beam"),
        ({"budget": 0}, "budget"),
        ({"smallest": -1}, "smallest"),
    ],
)
def test_wrong_options_are_explained(ask, options, message):
    with pytest.raises(MethodError, match=message):
        erasure(ask((0,)), **options)
