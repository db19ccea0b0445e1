"""Several threads use one model at once: every answer is the one that a thread alone gets."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress

import numpy as np
import pytest
import torch

import masklens as ml
import tiny
from masklens.diffmask.networks import seeded
from masklens.model import batch, subject
from masklens.model.locks import lock_of
from masklens.model.tap import watch

THREADS = 8
TEXTS = [
    "a fast , funny , highly enjoyable movie .",
    "the plot is dull and the acting is worse than the plot .",
    "Paris is the capital",
]
LONG = " ".join(["the plot is dull"] * 20)
METHODS: dict[str, dict] = {
    "integrated_gradients": {"n_steps": 4},
    "gradcam": {},
    "attention": {},
    "occlusion": {},
    "diffmask": {"steps": 3},
    "erasure": {},
}


def made() -> ml.Subject:
    """In training mode, with dropout, and with an attention that gives no weights."""
    plain = tiny.subject("bert")
    plain.module.set_attn_implementation("sdpa")
    return ml.Subject(plain.module.train(), plain.tokenizer, max_length=24, truncate=True)


def explained(one: ml.Subject, method: str) -> list[np.ndarray]:
    return [a.scores for a in ml.explain(one, TEXTS, method, **METHODS[method])]


def verified(one: ml.Subject) -> list[tuple]:
    found = ml.verify(one, ml.explain(one, TEXTS, "gradient"), keep=0.5)
    return [(v.divergence, v.prediction_kept, v.share_removed) for v in found]


def replaced(one: ml.Subject) -> np.ndarray:
    batch = one.encode([TEXTS[0]])
    with torch.no_grad():
        return one.run(batch, replace={1: lambda state: state * 0.5}, record=[2]).output.numpy()


def cut(one: ml.Subject) -> tuple:
    return one.encode([LONG]).tokens + one.encode(TEXTS).tokens


def tasks(one: ml.Subject) -> list:
    made = [lambda name=name: explained(one, name) for name in METHODS if name != "erasure"]
    return [*made, lambda: verified(one), lambda: replaced(one), lambda: cut(one)]


def same(found: object, expected: object) -> bool:
    """Equal up to the last bit or two: a busy machine may split a product another way."""
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float | np.ndarray):
        return np.allclose(found, expected, rtol=1e-4, atol=1e-6)
    return found == expected


def wrong_answers(calls: list, expected: list, rounds: int) -> int:
    """How often threads that all begin at once get something else, or an error."""
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> int:
        barrier.wait()
        bad = 0
        for k in range(rounds * len(calls)):
            i = (number + k) % len(calls)
            try:
                bad += not same(calls[i](), expected[i])
            except Exception:
                bad += 1
        return bad

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS)))


def test_threads_that_share_a_subject_get_right_answers(unchanged):
    one = made()
    calls = tasks(one)
    unchanged(one.module)
    expected = [call() for call in calls]
    assert wrong_answers(calls, expected, rounds=1) == 0
    unchanged(one.module)


def test_without_locks_answers_are_wrong(monkeypatch):
    """The test above can fail."""
    one = made()
    calls = tasks(one)
    expected = [call() for call in calls]
    for module, name, value in (
        (subject, "lock_of", lambda module: nullcontext()),
        (batch, "TOKENIZING", nullcontext()),
    ):
        monkeypatch.setattr(module, name, value)
    assert wrong_answers(calls, expected, rounds=3) > 0


def test_two_subjects_over_one_model_take_turns():
    one = made()
    other = ml.Subject(one.module, one.tokenizer, max_length=24, truncate=True)
    calls = [call for pair in zip(tasks(one), tasks(other), strict=True) for call in pair][-8:]
    expected = [call() for call in calls]
    assert wrong_answers(calls, expected, rounds=1) == 0


def test_modules_that_share_a_part_share_the_lock():
    model, other = tiny.model("bert"), tiny.model("gpt2")
    assert (
        lock_of(model) is lock_of(model) is lock_of(model.base_model) is lock_of(torch.nn.Sequential(model))
    )
    assert lock_of(other.base_model) is lock_of(other) is not lock_of(model)


def test_other_models_need_not_wait():
    one, other = made(), tiny.subject("gpt2")
    with one.frozen(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(explained, other, "gradcam").result(timeout=60)


def test_models_that_decode_each_other_do_not_wait_for_each_other():
    """Each thread has its own model in use when it asks for the other's; one must then have waited before."""
    models, both = [tiny.model("gpt2", "causal", seed) for seed in (0, 1)], threading.Barrier(2)
    done: list[int] = []

    def meet(*_: object) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    def work(own: int) -> None:
        one = ml.Subject(models[own], tiny.byte_bpe())
        ml.explain(one, TEXTS[:1], "decoded_gradcam", lm_head=models[1 - own])
        done.append(own)

    for model in models:
        model.transformer.wte.register_forward_hook(meet)
    threads = [threading.Thread(target=work, args=(own,), daemon=True) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(done) == [0, 1]


def test_a_block_of_another_thread_is_waited_for_and_nests():
    one, order = made(), []
    inside = threading.Event()

    def late() -> None:
        inside.wait()
        replaced(one)
        order.append("late")

    thread = threading.Thread(target=late)
    thread.start()
    with one.frozen(), one.eager_attention():
        inside.set()
        time.sleep(0.1)
        replaced(one)
        order.append("first")
    thread.join(60)
    assert order == ["first", "late"]


def test_layers_begin_with_their_seed_whatever_other_threads_do():
    """torch has one generator for all threads."""

    def begin(seed: int) -> list[float]:
        with seeded(seed):
            drawn = torch.rand(2)
            time.sleep(0.02)
            return [*drawn.tolist(), *torch.rand(2).tolist()]

    expected = [begin(seed) for seed in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(begin, range(THREADS))) == expected


def test_passes_are_watched_in_their_own_thread():
    one, seen = made(), []
    with watch(one.module, lambda: seen.append(threading.get_ident())):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(replaced, one).result()
        assert seen == []
        replaced(one)
    assert seen == [threading.get_ident()]


@contextmanager
def for_some_time(seconds: float):
    end = threading.Event()
    timer = threading.Timer(seconds, end.set)
    timer.start()
    try:
        yield end
    finally:
        timer.cancel()


@pytest.mark.slow
def test_a_soak_has_no_wrong_score():
    """Set MASKLENS_SOAK_SECONDS for another time than ten minutes."""
    one = made()
    calls = [*tasks(one), lambda: explained(one, "erasure")]
    expected = [call() for call in calls]
    done, bad = [0] * THREADS, []
    with for_some_time(float(os.environ.get("MASKLENS_SOAK_SECONDS", "600"))) as end:

        def work(number: int) -> None:
            while not end.is_set():
                i = (number + done[number]) % len(calls)
                if not same(calls[i](), expected[i]):
                    bad.append(i)
                done[number] += 1

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
    print(f"{sum(done)} calls in {THREADS} threads, {len(bad)} wrong")
    assert not bad and min(done) > 0
