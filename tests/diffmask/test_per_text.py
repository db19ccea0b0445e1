"""Masks for single texts: the planted digit, independence of the batch, and what each step estimates."""

import math

import numpy as np
import pytest
import torch

import masklens as ml
import sevens
from masklens.diffmask import per_text
from masklens.diffmask.gates import HardConcrete
from masklens.diffmask.per_text import Estimate, FreeMasks, ReinforceMasks, learn
from masklens.methods.registry import Request

pytestmark = pytest.mark.filterwarnings("ignore:diffmask without lens")


def masks(texts, kind=FreeMasks, site=0, baseline=None, learn_baseline=False):
    subject = sevens.subject()
    request = Request(subject, subject.encode(texts), (site,))
    return kind(request, site, torch.zeros(6) if baseline is None else baseline, learn_baseline)


@pytest.mark.parametrize("method", ["diffmask", "reinforce"])
def test_single_texts_find_the_decisive_digit(method):
    found = ml.explain(sevens.subject(), ["17342", "90876"], method, sites=[0, 1])
    for a in found:
        assert [a.tokens[i] for i in a.scores.argmax(1)] == ["7", "7"]
        others = np.delete(a.scores, a.tokens.index("7"), axis=1)
        assert a.scores[:, a.tokens.index("7")].min() > 0.5 > others.max(), a.scores


@pytest.mark.parametrize("method", ["diffmask", "reinforce"])
def test_single_texts_do_not_depend_on_their_batch(method):
    subject, texts = sevens.subject(), ["17342", "908767", "1"]
    together = ml.explain(subject, texts, method, steps=50)
    alone = [ml.explain(subject, [text], method, steps=50)[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one.scores, other.scores, atol=1e-5)


def test_a_learned_baseline_can_drop_even_the_decisive_digit():
    """Figure 12b: without amortisation a baseline made for one text stands in for all of it."""
    subject = sevens.subject()
    options = {"steps": 800, "baselines": "zero"}
    learned = ml.explain(subject, ["17342"], "diffmask", learn_baseline=True, **options)[0]
    fixed = ml.explain(subject, ["17342"], "diffmask", learn_baseline=False, **options)[0]
    assert fixed.scores[0, 1] > 0.5 > learned.scores[0, 1]


def test_gradients_that_overflow_do_not_spoil_the_masks():
    """A text whose gradient is once not a number goes on at the next step; others learn as before."""
    subject, steps = sevens.subject(), [0]
    divergence = FreeMasks.divergence

    def overflowing(self, keep):
        steps[0] += 1
        found = divergence(self, keep)
        bad = torch.tensor([1.0, torch.nan if steps[0] == 5 else 1.0])
        return found * bad if found.requires_grad else found

    plain = ml.explain(subject, ["17342", "83"], "diffmask", steps=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FreeMasks, "divergence", overflowing)
        made = ml.explain(subject, ["17342", "83"], "diffmask", steps=20)
    assert steps[0] > 20 and np.array_equal(made[0].scores, plain[0].scores)
    assert np.isfinite(made[1].scores).all()


def test_without_a_lens_there_is_a_warning():
    with pytest.warns(UserWarning, match="diffmask without lens= learns masks for each text alone"):
        ml.explain(sevens.subject(), ["17"], "diffmask", steps=1)


def test_a_step_estimates_by_gates_that_are_sampled():
    made = masks(["17342", "83"])
    with torch.no_grad():
        made.values.copy_(torch.tensor([[0.3, -1.0, 2.0, 0.5, 12.0], [1.0, 0.1, 0.0, 0.0, 0.0]]))
    noise = next(Request(made.subject, made.batch, (0,)).draws(1, torch.rand))[..., 0]
    found = made.estimate()
    for i, text in enumerate(("17342", "83")):
        logits = made.values[i, : len(text)].detach().clamp(-10, 10)
        keep = HardConcrete(logits).rsample(uniform=noise[i, : len(text)])
        batch = made.subject.encode([text])
        state = made.subject.states(batch, [0]).states[0]
        output = made.subject.run(batch, {0: keep[None, :, None] * state}).output
        expected = made.subject.task.divergence(made.reference[i : i + 1], output)
        torch.testing.assert_close(found.divergence[i : i + 1], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            found.log_keep[i, : len(text)], torch.log(torch.sigmoid(logits + 0.2 * math.log(5)))
        )


def test_reinforce_estimates_the_gradient_of_the_divergence():
    """The surrogate's mean gradient over many draws is that of the exact expectation."""
    made = masks(["17"], ReinforceMasks)
    with torch.no_grad():
        made.values.fill_(0.3)
    total = torch.zeros(1, 2)
    for _ in range(4000):
        total += torch.autograd.grad(made.estimate().divergence.sum(), made.values)[0]
    p = torch.full((1, 2), 0.3).sigmoid().requires_grad_()
    expected = 0.0
    for keep in torch.cartesian_prod(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])):
        with torch.no_grad():
            cost = made.divergence(keep[None])
        expected = expected + (torch.where(keep == 1, p, 1 - p).prod() * cost).sum()
    (exact,) = torch.autograd.grad(expected, p)
    exact = exact * (p * (1 - p)).detach()
    assert torch.allclose(total / 4000, exact, atol=0.03) and exact.abs().max() > 0.1


def test_reinforce_compares_a_divergence_with_its_moving_average():
    made = masks(["17342", "71"], ReinforceMasks)
    with torch.no_grad():
        made.values.zero_()
    noise = Request(made.subject, made.batch, (0,)).draws(1, torch.rand)
    average = None
    for _ in range(5):
        (slope,) = torch.autograd.grad(made.estimate().divergence.sum(), made.values)
        keep = (next(noise)[..., 0] < 0.5).float()
        found = made.divergence(keep)
        average = found if average is None else average
        expected = (found - average)[:, None] * (keep - 0.5)  # d log P(gates) / d logits at 0
        torch.testing.assert_close(slope, torch.where(made.batch.valid, expected, 0.0), atol=1e-3, rtol=1e-3)
        average = 0.99 * average + 0.01 * found
    assert slope.any()


class Told(FreeMasks):
    """Says a divergence that does not depend on the gates."""

    said = 0.0

    def estimate(self):
        gate = HardConcrete(self.logits)
        return Estimate(gate.log_prob_nonzero(), torch.full((len(self.batch),), self.said))


def test_a_text_that_ends_over_its_margin_goes_back_to_its_last_masks_within():
    """The estimate says that nothing matters, so all gates shut; hard masks tell otherwise."""
    made = masks(["17342", "12345"], Told)
    over = learn(made, margin=0.1, steps=300, lr=0.1)
    assert over.tolist() == [True, False]
    keep = made.keep_probability()
    assert (keep[0] > 0.5).all() and (keep[1] < 0.5).all()
    assert made.hard_divergence().max() <= 0.1


def test_a_text_that_is_lost_on_the_way_is_put_back_at_once():
    """Gates that are all shut have no gradient to open again."""
    seen = []

    class Watched(Told):
        def estimate(self):
            seen.append(self.keep_probability().detach().amax(1).tolist())
            return super().estimate()

    learn(masks(["17342", "12345"], Watched), margin=0.1, steps=300, lr=0.1)
    shut, empty = (torch.tensor(column) for column in zip(*seen, strict=True))
    opened = (shut[1:] - shut[:-1] > 0.4).nonzero()[:, 0] + 1
    assert len(opened) > 1 and all(step % per_text.LOOK == 0 for step in opened.tolist())
    assert (empty[1:] <= empty[:-1] + 0.01).all()  # of a text that needs nothing gates stay shut


def test_texts_that_were_put_back_are_noted(monkeypatch):
    monkeypatch.setattr(per_text, "FreeMasks", Told)
    found = ml.explain(sevens.subject(), ["17342", "12345"], "diffmask", steps=300, sites=[1])
    assert found[0].settings.get("restored@1") is True and "restored@1" not in found[1].settings


def test_multipliers_rise_until_a_text_is_within_its_margin():
    """A stronger margin keeps the decisive digit, a weaker one need not."""
    strict, weak = (
        ml.explain(sevens.subject(), ["1734"], "diffmask", margin=margin, sites=[0])[0].scores[0, 1]
        for margin in (0.05, 20.0)
    )
    assert strict > 0.5 > weak


def test_a_baseline_is_learned_for_each_text_or_fixed():
    fixed = masks(["17342", "12"], baseline=torch.ones(6))
    assert fixed.baseline.shape == (2, 1, 6) and not fixed.baseline.requires_grad
    learn(fixed, 0.1, 10, 0.1)
    assert (fixed.baseline == 1).all()
    free = masks(["17342", "12"], learn_baseline=True)
    learn(free, 0.1, 10, 0.1)
    assert free.baseline.detach().abs().amax(-1)[0] > 0


def test_single_texts_leave_the_model_as_it_was(unchanged):
    subject = sevens.subject()
    unchanged(subject.module)
    ml.explain(subject, ["17"], "diffmask", steps=5, learn_baseline=True)
    ml.explain(subject, ["17"], "reinforce", steps=5)
    unchanged(subject.module)
