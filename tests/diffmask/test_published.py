"""The published recipe: votes, log L0 and Lookahead a second time, and that a collapse is told."""

import copy
import math

import pytest
import torch

import sevens
from lens_parts import frozen
from masklens import verify
from masklens.diffmask import published
from masklens.diffmask.lens import DiffMask
from masklens.diffmask.networks import rows_for
from masklens.diffmask.published import Lookahead, PublishedProbe, train
from masklens.diffmask.trainer import Settings
from masklens.errors import LensError, TrainingError
from masklens.records.layers import site_name

pytestmark = pytest.mark.filterwarnings("ignore:.*training texts are few")
FIT = {"steps": 30, "batch_size": 16, "margin": 0.05, "recipe": "published"}
WIDTHS = {0: 8, 1: 6, 2: 6}


@pytest.fixture
def states():
    generator = torch.Generator().manual_seed(0)
    return {site: torch.randn(3, 5, width, generator=generator) for site, width in WIDTHS.items()}


def probe_over(over):
    torch.manual_seed(0)
    probe = PublishedProbe(rows_for(over, [0, 1, 2]), WIDTHS, votes=over == "inputs")
    with torch.no_grad():
        probe.biases.copy_(torch.tensor([1.0, 2.0, 0.5]))
    return probe


def slow_logits(probe, row, states):
    """10 tanh(w tanh(W x + b)) + bias, with normalised weights."""
    seen = torch.cat([states[site] for site in probe.rows[row].reads], -1)
    first, last = probe.networks[row][0], probe.networks[row][2]
    size, direction = first.parametrizations.weight.original0, first.parametrizations.weight.original1
    weight = size * direction / direction.norm(dim=1, keepdim=True)
    size, direction = last.parametrizations.weight.original0, last.parametrizations.weight.original1
    out = (size * direction / direction.norm())[0]
    return 10 * torch.tanh(torch.tanh(seen @ weight.T + first.bias) @ out) + probe.biases[row]


def slow_gate(logits, uniform):
    s = torch.sigmoid((torch.log(uniform / (1 - uniform)) + logits) / 0.2)
    return (s * 1.2 - 0.2).clamp(0, 1)


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_votes_multiply_over_inputs_and_only_there(over, states):
    probe = probe_over(over)
    for row in range(3):
        voters = range(row + 1) if over == "inputs" else [row]
        each = [torch.sigmoid(slow_logits(probe, i, states) + 0.2 * math.log(5)) for i in voters]
        torch.testing.assert_close(probe.keep_of(row, states), math.prod(each[1:], start=each[0]))
        torch.testing.assert_close(probe.log_keep(row, states), sum(one.log() for one in each))
    keep = probe.keep(states)
    assert torch.equal(keep[2], probe.keep_of(2, states))
    assert bool((keep[1:] <= keep[:-1]).all()) == (over == "inputs")


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_sampled_votes_multiply_too(over, states):
    probe = probe_over(over)
    for row in range(3):
        found = probe.sample(row, states, torch.Generator().manual_seed(7))
        noise = torch.Generator().manual_seed(7)
        expected = torch.ones(3, 5)
        for i in range(row + 1) if over == "inputs" else [row]:
            expected = expected * slow_gate(slow_logits(probe, i, states), torch.rand(3, 5, generator=noise))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert 0 < float((found == 0).float().mean()) < 1


def test_one_baseline_for_each_edited_site():
    assert list(probe_over("inputs").baselines) == ["0"]
    assert [len(one) for one in probe_over("states").baselines.values()] == [8, 6, 6]
    probe = probe_over("inputs")
    assert probe.baseline(2) is probe.baseline(0)


def test_lookahead_goes_half_of_the_way_back():
    fast = [torch.nn.Parameter(torch.tensor([1.0, 2.0])), torch.nn.Parameter(torch.tensor(5.0))]
    ahead = Lookahead(fast)
    now = [[1.0, 2.0], 5.0]
    slow = [list(now[0]), now[1]]
    for step in range(1, 20):
        with torch.no_grad():
            fast[0].add_(step)
            fast[1].mul_(1.1)
        now = [[value + step for value in now[0]], now[1] * 1.1]
        ahead.step()
        if step % 6 == 0:
            slow = [
                [s + 0.5 * (f - s) for s, f in zip(slow[0], now[0], strict=True)],
                slow[1] + 0.5 * (now[1] - slow[1]),
            ]
            now = [list(slow[0]), slow[1]]
        assert fast[0].tolist() == pytest.approx(now[0]) and float(fast[1].detach()) == pytest.approx(now[1])


def slow_site(probe, texts, generator):
    """A row drawn at random, its mean log P(kept), and the divergence of its sampled gates less 0.05."""
    row = int(torch.randint(2, (1,), generator=generator))
    drawn = texts.draw(torch.randint(40, (8,), generator=generator).tolist())
    states, valid = drawn.states(), drawn.batch.valid
    log_keep, keep = 0.0, 1.0
    for i in range(row + 1):
        logits = slow_logits(probe, i, states)
        log_keep = log_keep + torch.nn.functional.logsigmoid(logits + 0.2 * math.log(5))
        keep = keep * slow_gate(logits, torch.rand(logits.shape, generator=generator))
    sparsity = sum(log_keep[i][valid[i]].mean() for i in range(8)) / 8
    keep = torch.where(valid, keep, 1.0)[..., None]
    output = texts.subject.run(drawn.batch, {0: keep * states[0] + (1 - keep) * probe.baseline(row)}).output
    return row, sparsity, texts.subject.task.divergence(drawn.output, output).mean() - 0.05


@pytest.mark.parametrize(("bias", "climbs"), [(0.0, True), (9.0, False)])
def test_the_first_steps_are_the_published_ones(bias, climbs):
    """The loss is the mean log P(kept) and the multiplied violation; one row is drawn for each optimiser."""
    texts = frozen(sevens.texts(40))
    probe = PublishedProbe(rows_for("inputs", [0, 1]), texts.widths, votes=True)
    with torch.no_grad():
        probe.biases.fill_(bias)
        probe.baseline(0).fill_(0.5)
    other = copy.deepcopy(probe)
    with texts.subject.frozen():
        found = train(probe, texts, Settings(steps=3, batch_size=8, margin=0.05, seed=0))
    generator = torch.Generator().manual_seed(0)
    learned = [*other.networks.parameters(), other.biases]
    groups = [{"params": learned, "lr": 3e-4}, {"params": list(other.baselines.values()), "lr": 1e-3}]
    minimise = torch.optim.RMSprop(groups, centered=True)
    multipliers = torch.nn.Parameter(torch.ones(2))
    maximise = torch.optim.RMSprop([multipliers], lr=0.3)
    for _ in range(3):
        row, sparsity, violation = slow_site(other, texts, generator)
        minimise.zero_grad()
        (sparsity + multipliers[row].item() * violation).backward()
        minimise.step()
        row, _, violation = slow_site(other, texts, generator)
        multipliers.grad = torch.zeros(2)
        multipliers.grad[row] = -violation.item()
        maximise.step()
        multipliers.data.clamp_(0, 200)
    torch.testing.assert_close(found, multipliers.detach(), atol=1e-3, rtol=1e-3)
    assert bool(found.max() > 3) == climbs
    for fast, slow in zip(probe.networks, other.networks, strict=True):
        for layer in (0, 2):
            torch.testing.assert_close(fast[layer].weight, slow[layer].weight, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(fast[0].bias, slow[0].bias, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(probe.biases, other.biases, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(probe.baseline(0), other.baseline(0), atol=1e-4, rtol=1e-4)
    assert probe.biases[0] != bias and (not climbs or (probe.baseline(0) != 0.5).any())


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_it_runs_and_is_judged_like_any_lens(over):
    made = DiffMask.fit(sevens.subject(), sevens.texts(60), over, **FIT)
    assert [d.site for d in made.diagnostics] == [0, 1] and made.sites == (0, 1)
    a = made.explain("17342")[0]
    assert a.scores.shape == (2, 5)
    assert over == "states" or (a.scores[1] <= a.scores[0]).all()
    assert len(verify(made.subject, [a], replace=made)) == 1
    before = DiffMask.fit(sevens.subject(), sevens.texts(60), over, **{**FIT, "steps": 1})
    for name, value in made.probe.state_dict().items():
        assert not torch.equal(value, before.probe.state_dict()[name]), name


def test_same_seed_same_lens():
    first, again, other = (
        DiffMask.fit(sevens.subject(), sevens.texts(60), seed=seed, held_out=sevens.texts(9, 1), **FIT)
        for seed in (0, 0, 1)
    )
    for name, value in first.probe.state_dict().items():
        assert torch.equal(value, again.probe.state_dict()[name])
    assert not torch.equal(first.probe.biases, other.probe.biases)


def test_a_collapse_is_told(monkeypatch):
    def collapsed(probe, texts, settings):
        with torch.no_grad():
            probe.biases.fill_(-30.0)
        return torch.tensor([200.0, 150.0])

    monkeypatch.setattr(published, "train", collapsed)
    made = DiffMask.fit(sevens.subject(), sevens.texts(100), over="states", **FIT)
    assert all(d.kept == 0 and not d.ok and d.divergence > 0.05 for d in made.diagnostics)
    for event, site, multiplier in zip(made.events, (0, 1), (200, 150), strict=True):
        assert event.startswith(f"{site_name(site)} has collapsed: divergence ")
        assert event.endswith(f"0% kept, multiplier {multiplier}")


def test_without_a_collapse_nothing_is_told():
    made = DiffMask.fit(sevens.subject(), sevens.texts(60), **FIT)
    assert all(d.ok for d in made.diagnostics) and made.events == []


def test_gates_that_are_shut_stay_shut():
    """Why the recipe collapses: no gradient leads from gates that are all shut to open ones."""
    texts = frozen(sevens.texts(60))
    probe = PublishedProbe(rows_for("states", [0, 1]), texts.widths, votes=False)
    with torch.no_grad():
        probe.biases.fill_(-30.0)
    with texts.subject.frozen():
        multipliers = train(probe, texts, Settings(steps=200, batch_size=16, margin=0.05))
    assert probe.keep(texts.draw(list(range(60))).states()).max() < 1e-3 and multipliers.min() > 10


def test_it_cannot_be_saved_or_started_from(tmp_path):
    made = DiffMask.fit(sevens.subject(), sevens.texts(60), **FIT)
    with pytest.raises(LensError, match="published recipe is for comparison and cannot be saved"):
        made.save_pretrained(tmp_path / "lens")
    assert not (tmp_path / "lens").exists()
    with pytest.raises(LensError, match="the lens to start from"):
        DiffMask.fit(made.subject, sevens.texts(60), start=made, steps=1)


def test_a_loss_that_is_not_finite_is_an_error():
    texts = frozen(sevens.texts(40))
    with torch.no_grad():
        texts._kept.states[0].fill_(math.nan)
    probe = PublishedProbe(rows_for("states", [0]), texts.widths, votes=False)
    with pytest.raises(TrainingError, match="published recipe's loss was not finite at step 0"):
        train(probe, texts, Settings(steps=3, batch_size=4))
