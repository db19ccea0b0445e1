"""The trainer: its formulas a second time, resuming, same seed same result, recovery from a collapse."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sevens
from masklens.errors import TrainingError
from masklens.diffmask.trainer import Multipliers, Settings, Terms, Training, kept_cost
from masklens.diffmask.objective import FrozenTexts, LensObjective, edited_run
from masklens.diffmask.networks import Probe, rows_for
from masklens.subject import Subject

QUICK = Settings(margin=0.05, steps=40, batch_size=16, evaluate_every=10, lr=1e-2)


def objective(settings=QUICK, over="states", members=1):
    subject = sevens.subject()
    torch.manual_seed(settings.seed)
    train = FrozenTexts(subject, sevens.texts(64), subject.sites, 10**9)
    held = FrozenTexts(subject, sevens.texts(32, seed=1), subject.sites, 10**9)
    rows = rows_for(over, subject.sites)
    probe = Probe(rows, train.widths, over == "inputs", hidden=8, members=members)
    return LensObjective(probe, train, held, settings)


def weights(training):
    return {name: value.clone() for name, value in training.objective.module.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_kept_cost_of_each_penalty():
    log_keep = torch.tensor([[0.5, 0.25, 0.9], [0.1, 0.2, 0.3]]).log()
    valid = torch.tensor([[True, True, False], [True, True, True]])
    terms = Terms(log_keep, valid, torch.zeros(2), torch.zeros(2, dtype=torch.long))
    plain = kept_cost(terms, Settings(), sharpening=False)
    assert plain.tolist() == pytest.approx([0.375, 0.2])
    sharp = kept_cost(terms, Settings(power=0.5), sharpening=True)
    assert sharp.tolist() == pytest.approx([(0.5**0.5 + 0.5) / 2, (0.1**0.5 + 0.2**0.5 + 0.3**0.5) / 3])
    log = kept_cost(terms, Settings(penalty="log"), sharpening=False)
    assert log[0].item() == pytest.approx((math.log(0.5) + math.log(0.25)) / 2)


def test_multipliers_climb_on_violations_and_only_where_seen():
    settings = Settings(
        margin=0.1, multiplier=1.0, multiplier_lr=0.5, floor=3.0, multiplier_max=5.0, relative=False
    )
    multipliers = Multipliers(torch.ones(4), settings)
    total, count = torch.tensor([0.6, 0.0, 0.0, 900.0]), torch.tensor([2.0, 2.0, 0.0, 1.0])
    kept = torch.zeros(4)
    multipliers.update(total, kept, count, sharpening=False)
    # the aim is 0.09: mean 0.3 is 0.21 over; mean 0 is 0.09 under; not seen: as it was; 900 counts for 1
    assert multipliers.values.tolist() == pytest.approx([1.105, 0.955, 1.0, 1.5])
    multipliers.update(total, kept, count, sharpening=True)
    assert multipliers.values.min() == 3.0


def test_relative_multipliers_do_not_depend_on_the_size_of_divergences():
    small, large = (
        Multipliers(torch.tensor([w]), Settings(margin=0.1 * w, floor=0.0, multiplier_max=99.0))
        for w in (1.0, 9.0)
    )
    kept, count = torch.tensor([0.5]), torch.tensor([1.0])
    small.update(torch.tensor([0.2]), kept, count, sharpening=True)
    large.update(torch.tensor([1.8]), kept, count, sharpening=True)
    assert small.values.item() != 5.0
    assert small.values.item() == pytest.approx(large.values.item())
    group = torch.tensor([0])
    one, other = (m.penalty(torch.tensor([d]), group).item() for m, d in ((small, 0.5), (large, 4.5)))
    assert one == pytest.approx(other)


def test_relative_multipliers_move_by_factors_in_units_of_the_aim():
    settings = Settings(margin=0.1, slack=0.5, multiplier=4.0, multiplier_lr=0.1, floor=0.0)
    multipliers = Multipliers(torch.full((4,), 7.0), settings)
    # The aim is 0.05: under it by all of it, at it, over it by as much, and by more than three times as much.
    divergence = torch.tensor([0.0, 0.05, 0.1, 99.0])
    multipliers.update(divergence, torch.ones(4), torch.ones(4), sharpening=True)
    expected = [4 * math.exp(0.1 * over) for over in (-1, 0, 1, 3)]
    assert multipliers.values.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("given", [{"first_aim": 0.0}, {"first_aim": 1.5}, {"slack": 1.0}, {"slack": -0.1}])
def test_shares_of_the_margin_that_leave_no_aim_are_errors(given):
    settings = replace(QUICK, **given)
    with pytest.raises(TrainingError, match="shares of the margin"):
        Training(objective(settings), settings)


def test_the_floor_follows_what_is_still_kept():
    multipliers = Multipliers(torch.tensor([1.0, 1.0]), Settings(floor=1.5, multiplier=1.5))
    for _ in range(500):  # nothing is over the margin; the second group keeps a fifth
        multipliers.update(torch.zeros(2), torch.tensor([1.0, 0.2]), torch.ones(2), sharpening=True)
    assert multipliers.values.tolist() == pytest.approx([1.5, 0.3], rel=1e-3)


def test_where_rows_vote_the_first_may_use_a_share_of_the_aim_and_the_last_all():
    settings = Settings(margin=0.1, slack=0.2, first_aim=0.25)
    voting = Multipliers(torch.ones(3), settings, votes=True)
    assert voting.aim.tolist() == pytest.approx([0.02, 0.04, 0.08])
    assert Multipliers(torch.ones(3), settings).aim.tolist() == pytest.approx([0.08, 0.08, 0.08])
    group = torch.tensor([0, 2])
    costs = voting.penalty(torch.tensor([0.04, 0.04]), group)
    assert costs[0] > 0 > costs[1]  # the same divergence is too much for the first, not for the last


def test_where_rows_vote_later_ones_are_trained_on_more_examples():
    generator = torch.Generator().manual_seed(0)
    made = objective(over="inputs")
    made.groups = 4
    deep = made._choice(3000, generator).bincount() / 3000
    assert deep.tolist() == pytest.approx([1 / 12, 2 / 12, 3 / 12, 1 / 2], abs=0.03)
    made.groups = 1
    assert made._choice(3000, generator).bincount().tolist() == [3000]
    even = objective(replace(QUICK, deeper=False), over="inputs")._choice(3000, generator).bincount()
    assert even.tolist() == [1500, 1500]
    assert objective(over="states")._choice(3000, generator).bincount().tolist() == [1500, 1500]


@pytest.mark.parametrize("joint", [False, True])
def test_baselines_stay_as_warming_left_them_unless_they_are_learned_jointly(joint):
    settings = replace(QUICK, joint=joint, warm_until=0.25, steps=20, multiplier=50.0)
    training = Training(objective(settings), settings)
    baseline, seen = training.objective.module.baselines["0"], {}
    while training.step < settings.steps:
        seen[training.step] = baseline.detach().clone()
        training._one_step()
        training.step += 1
    assert not torch.equal(seen[0], seen[5])  # 5 steps of warming
    assert torch.equal(seen[5], baseline) != joint


def test_the_loss_is_equation_3():
    made = objective()
    training = Training(made, QUICK)
    training.step = QUICK.steps // 4
    training.multipliers.values = torch.tensor([2.0, 3.0])
    terms = made.terms(training.step, 0, 1)
    expected = 0.0
    for i in range(len(terms.divergence)):
        kept = terms.log_keep[i][terms.valid[i]].exp().mean()
        multiplier = training.multipliers.values[terms.group[i]]
        expected += (kept + multiplier * (terms.divergence[i] - 0.045)).item() / len(terms.divergence)
    cost = kept_cost(terms, QUICK, False)
    loss = (cost + training.multipliers.values[terms.group] * (terms.divergence - 0.045)).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    gradient = torch.autograd.grad(loss, made.module.gate(0).bias)[0]
    assert gradient.isfinite() and gradient != 0


def test_terms_are_those_of_the_model_run_alone():
    made = objective(over="inputs")
    for row in range(made.groups):
        made.module.gate(row).bias.data.fill_(1.0)  # much is dropped
    step = QUICK.steps - 1
    terms = made.terms(step, 0, 1)
    rows = made._rows(step)
    batch, (reference, states) = made.train.draw(rows)
    assert not terms.divergence.isnan().any() and terms.divergence.max() > 0
    edits = {made.module.rows[g].edit for g in terms.group.tolist()}
    assert edits == {0}
    full = made.train.subject.run(batch, replace={0: states[0]}).output
    assert torch.equal(full, reference)


def test_one_run_with_all_edits_is_one_run_a_site():
    """Without blocks to skip, all edited sites go through the model at once: the same divergences."""
    at_once, apart = objective(), objective()
    apart.train.subject.blocks = {9: None}  # as if there were something to skip
    for made in (at_once, apart):
        with torch.no_grad():
            for group in (0, 1):
                made.module.gate(group).bias.fill_(-2.0)
    one, other = at_once.terms(30, 0, 1), apart.terms(30, 0, 1)
    assert set(one.group.tolist()) == {0, 1} and one.divergence.max() > 0.1
    assert torch.allclose(one.divergence, other.divergence, atol=1e-6)


def test_same_seed_same_result_and_another_seed_another():
    one, two, other = (Training(objective(s), s) for s in (QUICK, QUICK, replace(QUICK, seed=1)))
    for training in (one, two, other):
        training.run()
    assert same(weights(one), weights(two))
    assert not same(weights(one), weights(other))


def test_members_take_turns_where_a_step_has_fewer_texts():
    made = objective(replace(QUICK, batch_size=2, anchor=0.0), members=5)
    seen = []
    for step in range(30, 35):
        made.module.zero_grad()
        made.terms(step, 0, 1).log_keep.sum().backward()
        gradient = sum(gate.bias.grad for gate in made.module.gates)
        seen += gradient.nonzero()[:, 0].tolist()
    assert seen == [0, 1, 2, 3, 0, 4, 1, 2, 3, 4]  # from step 30 on, two at a time


def test_a_site_that_is_put_back_has_all_its_members_put_back():
    training = Training(objective(members=2), QUICK)
    before = weights(training)
    with torch.no_grad():
        for gate in training.objective.module.gates:
            gate.bias.add_(1.0)
    training.restore(1)
    after = weights(training)
    assert torch.equal(before["gates.1.bias"], after["gates.1.bias"])
    assert not torch.equal(before["gates.0.bias"], after["gates.0.bias"])


@pytest.mark.parametrize("members", [1, 3])
def test_ranks_share_the_batch_of_one_process(members):
    made = objective(replace(QUICK, anchor=0.0), members=members)
    with torch.no_grad():
        for gate in made.module.gates:
            gate.bias.copy_(torch.arange(members) - 2.0)
    whole, halves = made.terms(30, 0, 1), [made.terms(30, rank, 2) for rank in (0, 1)]
    assert torch.allclose(whole.divergence[0::2], halves[0].divergence, atol=1e-6)
    assert torch.allclose(whole.divergence[1::2], halves[1].divergence, atol=1e-6)
    assert torch.equal(whole.group[1::2], halves[1].group)
    assert whole.anchor == 0


def test_ranks_share_the_emptied_texts_of_one_process():
    made = objective()
    whole, halves = made.terms(30, 0, 1), [made.terms(30, rank, 2) for rank in (0, 1)]
    assert len(whole.divergence) == sum(len(half.divergence) for half in halves) == QUICK.batch_size - 1
    assert whole.anchor > 0.01
    assert torch.allclose(whole.anchor, sum(half.anchor for half in halves) / 2, atol=1e-6)


def test_a_process_whose_only_text_is_emptied_learns_the_baseline_alone(monkeypatch):
    made = objective(replace(QUICK, batch_size=2))
    training = Training(made, made.settings)
    terms = next(t for t in (made.terms(30, rank, 2) for rank in (0, 1)) if not len(t.divergence))
    monkeypatch.setattr(made, "terms", lambda step, rank, world: terms)
    before = weights(training)
    training._one_step()
    changed = [name for name, value in weights(training).items() if not torch.equal(value, before[name])]
    assert changed and all(name.startswith("baselines") for name in changed)


def test_emptied_texts_are_held_to_the_average_output():
    """Alone, the anchor makes a baseline say what the model says on average, and leaves the gates alone."""
    made = objective(replace(QUICK, anchor=1.0))
    probe, subject = made.module, made.train.subject
    batch, run = made.train.draw(range(len(made.train)))
    usual = subject.task.average(run.output).expand_as(run.output)
    nothing = torch.zeros(batch.shape)

    def off():
        emptied = edited_run(subject, batch, 0, run.states[0], nothing, probe.baseline(0))
        return subject.task.divergence(usual, emptied).mean().item()

    before, optimizer = off(), torch.optim.Adam(probe.baselines.values(), lr=0.05)
    for step in range(60):
        optimizer.zero_grad()
        made.terms(step, 0, 1).anchor.backward()
        assert all(gate.bias.grad is None or not gate.bias.grad.any() for gate in probe.gates)
        optimizer.step()
    assert off() < 0.01 < before


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_lagrangian import QUICK, Training, objective
class Killed(Training):
    def _one_step(self):
        if self.step == 25:
            os.kill(os.getpid(), 9)
        return super()._one_step()
Killed(objective(), QUICK, sys.argv[1]).run()
"""


def test_a_killed_run_resumes_to_the_same_result(tmp_path):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(here)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == -9
    resumed = Training(objective(), QUICK, tmp_path)
    assert resumed.resume() and resumed.step == 20
    resumed.run()
    straight = Training(objective(), QUICK)
    straight.run()
    assert same(weights(resumed), weights(straight))
    assert torch.equal(resumed.multipliers.values, straight.multipliers.values)
    assert resumed.history == straight.history


def test_resume_refuses_other_settings(tmp_path):
    Training(objective(), QUICK, tmp_path).run()
    with pytest.raises(TrainingError, match=r"lr=0.01, this run has lr=0.5"):
        Training(objective(), replace(QUICK, lr=0.5), tmp_path).resume()


def test_no_checkpoint_no_resume(tmp_path):
    assert not Training(objective(), QUICK, tmp_path).resume()


def test_a_collapsed_group_is_put_back_and_reported():
    settings = replace(QUICK, steps=400, evaluate_every=5, lr=1e-6, sharpen_from=0.0)
    training = Training(objective(settings), settings)
    gate = training.objective.module.gate(1)
    with torch.no_grad():
        gate.bias.fill_(-30.0)  # shut for good: no gradient would ever open it again
    for _ in range(3):
        training._evaluate()
    assert len(training.events) == 1 and "site 1 had collapsed" in training.events[0]
    assert float(gate.bias.detach()) == pytest.approx(5.0)
    assert training.multipliers.values[1] >= 2 * settings.floor
    assert training._evaluate()[1].ok


def test_a_group_that_was_good_is_put_back_as_soon_as_it_is_far_over_its_margin():
    settings = replace(QUICK, lr=1e-6)
    training = Training(objective(settings), settings)
    training.worst = [1e9, 1e9]  # so that nothing counts as dropping everything
    training.history = [{"step": 10, "rows": [{"ok": True, "kept": 0.5, "divergence": 0.01}] * 2}]
    assert training._collapsed(0, 3.1 * settings.margin) and not training._collapsed(0, 2.9 * settings.margin)
    training.history = [{"step": 10, "rows": [{"ok": True, "kept": 1.0, "divergence": 0.0}] * 2}]
    assert not training._collapsed(0, 3.1 * settings.margin)


@pytest.mark.parametrize("members", [1, 3])
def test_settle_opens_gates_until_every_row_keeps_its_margin(members):
    made = objective(over="inputs", members=members)
    with torch.no_grad():
        for gate in made.module.gates:
            gate.bias.fill_(-9.0)
    assert not any(d.ok for d in made.diagnose([0, 0]))
    events = made.settle()
    assert all(d.ok for d in made.diagnose([0, 0])) and "gates opened" in events[0]


def test_patience_ends_a_run_that_no_longer_improves():
    settings = replace(QUICK, steps=4000, patience=2, lr=1e-9, sharpen_from=0.0, warm_until=0.0)
    training = Training(objective(settings), settings)
    training.run()
    assert training.step <= 50


def test_a_loss_that_is_not_finite_is_an_error():
    made = objective()
    training = Training(made, replace(QUICK, evaluate_every=40))  # told long before that
    with torch.no_grad():
        made.module.gate(0).bias.fill_(math.nan)
    with pytest.raises(TrainingError, match="not finite before step 10"):
        training.run()


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_a_step_does_not_look_at_its_outputs(over, monkeypatch):
    """Each look would wait for a GPU; the loss tells of them every few steps."""
    training = Training(objective(over=over), QUICK)
    looked = []
    read = Subject._read
    monkeypatch.setattr(Subject, "_read", lambda *given: looked.append(given[3]) or read(*given))
    training._one_step()
    assert looked and not any(looked)
    training.objective.worst()
    assert looked[-1]  # judging does


def test_a_loss_that_was_not_finite_once_is_an_error_too(tmp_path):
    made = objective()
    training = Training(made, replace(QUICK, evaluate_every=5), tmp_path)
    terms = made.terms

    def once_infinite(step, rank, world):
        found = terms(step, rank, world)
        return found._replace(divergence=found.divergence + math.inf) if step == 3 else found

    made.terms = once_infinite
    with pytest.raises(TrainingError, match="not finite before step 5"):
        training.run()
    assert not training.file.exists()  # nothing is kept of it


def test_an_unknown_penalty_is_an_error():
    with pytest.raises(TrainingError, match="'plain' or 'log'"):
        Training(objective(), replace(QUICK, penalty="l2"))
