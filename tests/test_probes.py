"""Probes: which states decide what, votes, sampling and the baseline, each written a second time slowly."""

import math

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from masklens.errors import TrainingError
from masklens.diffmask.gates import HardConcrete
from masklens.diffmask.networks import (
    CAREFUL,
    GateNetwork,
    Probe,
    Row,
    compare,
    inward,
    mix,
    rows_for,
    sample_keep,
    summary,
    with_members,
)

WIDTHS = {0: 6, 1: 4, 2: 4}
VALID = torch.ones(3, 5, dtype=torch.bool)


@pytest.fixture
def states():
    generator = torch.Generator().manual_seed(0)
    return {site: torch.randn(3, 5, width, generator=generator) for site, width in WIDTHS.items()}


def probe_over(over, **options):
    torch.manual_seed(0)
    return Probe(rows_for(over, [0, 1, 2]), WIDTHS, over == "inputs", hidden=8, **options)


def test_rows_of_each_form():
    assert rows_for("inputs", [0, 1, 2])[2] == Row(2, 0, (0, 2))
    assert rows_for("states", [0, 1, 2])[1] == Row(1, 1, (1,))
    assert rows_for([(0, 2)], [0, 1, 2]) == (Row(2, 0, (2,)),)
    with pytest.raises(TrainingError, match="'inputs', 'states', or pairs"):
        rows_for("tokens", [0])


def test_gate_network_is_the_papers_formula():
    torch.manual_seed(0)
    gate = GateNetwork(4, 8, gate="tanh")
    gate.mean.copy_(torch.tensor([1.0, 0, -1, 2]))
    gate.scale.fill_(2.0)
    x, valid = torch.randn(1, 1, 7, 4), torch.ones(1, 1, 7, dtype=torch.bool)
    size, direction = gate.hidden.size[0], gate.hidden.direction[0]
    weight = torch.stack([g * v / v.square().sum().sqrt() for g, v in zip(size, direction, strict=True)])
    hidden = torch.tanh((x - gate.mean) / 2 @ weight.T + gate.hidden_bias)
    expected = 5.0 + 10 * torch.tanh(hidden @ gate.out.weight[0, 0])
    assert torch.allclose(gate(x, valid=valid), expected, atol=1e-6)
    free = GateNetwork(4, 8, gate="plain")
    free.load_state_dict(gate.state_dict())
    assert torch.allclose(free(x, valid=valid), 5.0 + hidden @ gate.out.weight[0, 0], atol=1e-6)


def test_gates_begin_open(states):
    keep = probe_over("inputs").log_keep(states, VALID).exp()
    assert float(keep.detach().min()) > 0.9


def test_the_probability_of_members_is_the_mean_of_theirs(states):
    probe = probe_over("inputs", members=3)
    probe.gate(1).bias.data.copy_(torch.tensor([-8.0, -4.0, 2.0]))
    each = [HardConcrete(probe.logits(states, VALID, member)).prob_nonzero() for member in range(3)]
    assert (each[0][1] - each[2][1]).abs().min() > 0.1
    torch.testing.assert_close(probe.log_keep(states, VALID).exp(), torch.stack(each).mean(0))


def test_an_example_teaches_the_member_that_masks_it(states):
    probe = probe_over("states", members=2)
    logits = probe.logits_by(states, VALID, torch.tensor([1, 0, 1]))
    for i, member in enumerate((1, 0, 1)):
        torch.testing.assert_close(logits[:, i], probe.logits(states, VALID, member)[:, i])
    assert not torch.allclose(logits[:, 1], probe.logits(states, VALID, 1)[:, 1])
    probe.logits_by(states, VALID, torch.tensor([1, 1, 1])).sum().backward()
    for row in range(3):
        one, other = probe.gate(row).bias.grad.tolist()
        assert one == 0 and other != 0


def test_older_weights_are_those_of_one_member():
    """Before there were members, torch's weight normalisation named the weights."""
    layers = {"hidden": torch.nn.Linear(6, 8), "out": torch.nn.Linear(8, 1, bias=False)}
    for layer in map(weight_norm, layers.values()):
        layer.parametrizations.weight.original0.data.mul_(3.0)
    older = {f"{n}.{k}": v for n, layer in layers.items() for k, v in layer.state_dict().items()}
    older |= {"bias": torch.tensor(1.5), "mean": torch.ones(6), "scale": torch.full((6,), 2.0)}
    one = Probe(rows_for("states", [0]), {0: 6}, False, hidden=8)
    one.load_state_dict(
        with_members({"baselines.0": torch.zeros(6), **{f"gates.0.{k}": v for k, v in older.items()}})
    )
    gate = one.gate(0)
    torch.testing.assert_close(gate.hidden.weight[0], layers["hidden"].weight)
    torch.testing.assert_close(gate.out.weight[0], layers["out"].weight)
    assert torch.equal(gate.hidden_bias[0], layers["hidden"].bias) and gate.bias.tolist() == [1.5]
    assert gate.mean.tolist() == [1.0] * 6 and gate.scale.tolist() == [2.0] * 6
    assert with_members(one.state_dict()).keys() == one.state_dict().keys()


def test_there_is_at_least_one_member():
    with pytest.raises(TrainingError, match="members=0; give 1 or more"):
        probe_over("inputs", members=0)


def test_what_rows_say_adds_up(states):
    probe = probe_over("inputs")
    for i in range(3):
        probe.gate(i).bias.data.fill_(-1.0)
    each = [probe.gate(i)(states[0][None], states[i][None], valid=VALID[None])[0] for i in range(3)]
    against = [torch.log1p((-one).exp()) for one in each]  # -log sigmoid
    expected = torch.stack([5 - against[0], 5 - against[0] - against[1], 5 - sum(against)])
    torch.testing.assert_close(probe.logits(states, VALID), expected)
    torch.testing.assert_close(probe.log_keep(states, VALID).exp(), HardConcrete(expected).prob_nonzero())


def test_what_is_dropped_stays_dropped_and_can_come_back_in_training(states):
    probe = probe_over("inputs")
    for i in range(3):
        probe.gate(i).out.size.data.fill_(3.0)
    keep = probe.log_keep(states, VALID).exp().detach()
    assert (keep[1:] <= keep[:-1]).all() and float(keep[-1].min()) < 0.5 < float(keep[-1].max())
    probe.gate(0).bias.data.fill_(-50.0)
    logits = probe.logits(states, VALID)
    assert (logits == probe.limits[0]).all()
    assert torch.autograd.grad(-logits.sum(), probe.gate(0).bias)[0] != 0  # towards open


def test_votes_multiply_over_rows(states):
    probe = probe_over("inputs", sums=False)
    single = HardConcrete(probe.logits(states, VALID)).prob_nonzero()
    expected = torch.stack([single[0], single[0] * single[1], single[0] * single[1] * single[2]])
    assert torch.allclose(probe.log_keep(states, VALID).exp(), expected, atol=1e-6)


def test_states_do_not_vote(states):
    probe = probe_over("states")
    assert torch.allclose(
        probe.log_keep(states, VALID).exp(), HardConcrete(probe.logits(states, VALID)).prob_nonzero()
    )


def test_a_row_reads_its_sites_and_no_others(states):
    for over, reads in (("inputs", {1: (0, 1)}), ("states", {1: (1,)}), ([(0, 2)], {0: (2,)})):
        probe = probe_over(over)
        for row, sites in reads.items():
            before = probe.logits(states, VALID)[row]
            for site in WIDTHS:
                moved = {**states, site: states[site] + 1}
                assert torch.equal(probe.logits(moved, VALID)[row], before) == (site not in sites)


@pytest.mark.parametrize("votes", [True, False])
def test_sample_keep_takes_each_examples_row(votes):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, 5, generator=generator)
    uniform = torch.rand(3, 4, 5, generator=generator)
    chosen = torch.tensor([2, 0, 1, 2])
    keep, log_keep = sample_keep(logits, chosen, votes, uniform)
    for i, row in enumerate(chosen.tolist()):
        used = range(row + 1) if votes else [row]
        gates = [HardConcrete(logits[k, i]).rsample(uniform=uniform[k, i]) for k in used]
        logs = [HardConcrete(logits[k, i]).log_prob_nonzero() for k in used]
        assert torch.allclose(keep[i], math.prod(gates[1:], start=gates[0]), atol=1e-6)
        assert torch.allclose(log_keep[i], sum(logs), atol=1e-6)


@pytest.mark.parametrize("votes", [True, False])
def test_straight_samples_are_the_same_and_every_gate_learns(votes):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 3, 50, generator=generator).requires_grad_()
    uniform = torch.rand(2, 3, 50, generator=generator)
    chosen, slope = torch.tensor([0, 0, 0]), torch.randn(3, 50, generator=generator)
    found = {}
    for straight in (True, False):
        keep, _ = sample_keep(logits, chosen, votes, uniform, straight)
        found[straight] = keep.detach(), torch.autograd.grad((keep * slope).sum(), logits)[0][0]
    torch.testing.assert_close(found[True][0], found[False][0])
    kept = HardConcrete(logits[0]).prob_nonzero()
    torch.testing.assert_close(found[True][1], slope * kept * (1 - kept))  # d P(kept) / d logit
    assert (found[False][1].abs() < 1e-3).float().mean() > 0.5  # the published way, most gates learn nothing


def test_mix_keeps_and_replaces():
    state, baseline = torch.randn(2, 3, 4), torch.randn(4)
    keep = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
    mixed = mix(keep, state, baseline)
    assert torch.equal(mixed[0, 0], state[0, 0])
    assert torch.equal(mixed[0, 1], baseline)
    assert torch.allclose(mixed[0, 2], (state[0, 2] + baseline) / 2)


def test_one_baseline_for_each_edited_site(states):
    assert list(probe_over("inputs").baselines) == ["0"]
    assert list(probe_over([(0, 0), (0, 2)]).baselines) == ["0"]
    assert [len(b) for b in probe_over("states").baselines.values()] == [6, 4, 4]
    assert not any(b.requires_grad for b in probe_over("states", learn_baseline=False).baselines.values())


def test_statistics_standardise_valid_positions(states):
    probe = probe_over("states", members=2)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])
    probe.fit_statistics(states, valid)
    seen = states[1][valid]
    gate = probe.gate(1)
    assert torch.allclose(gate.mean, seen.mean(0)) and torch.allclose(gate.scale, seen.std(0))


@pytest.mark.parametrize("over", ["inputs", "states", [(0, 2), (1, 2), (2, 2)]])
@pytest.mark.parametrize("gate", ["inward", "tanh", "plain"])
def test_networks_of_one_size_together_are_the_networks_one_by_one(over, gate):
    torch.manual_seed(0)
    rows = rows_for(over, [0, 1, 2])
    probe = Probe(rows, {0: 6, 1: 6, 2: 6}, over == "inputs", hidden=5, gate=gate, compared=2, sums=False)
    for p in probe.parameters():
        torch.nn.init.normal_(p)
    states = {site: torch.randn(3, 4, 6) for site in (0, 1, 2)}
    valid = torch.tensor([[True] * 4, [True] * 3 + [False], [False] * 3 + [True]])
    probe.fit_statistics(states, valid)
    apart = torch.stack(
        [probe.gate(i)(*(states[s][None] for s in row.reads), valid=valid[None])[0]
         for i, row in enumerate(rows)]
    )  # fmt: skip
    together = probe.logits(states, valid)
    assert together.std() > 0.1
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    weight = torch.randn_like(apart)
    slow = torch.autograd.grad((apart * weight).sum(), list(probe.gates.parameters()))
    quick = torch.autograd.grad((together * weight).sum(), list(probe.gates.parameters()))
    for a, b in zip(slow, quick, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_compare_is_the_log_of_a_share_and_of_how_many_there_are():
    scores = torch.randn(2, 3, 5, 4)  # (rows, examples, tokens, scores)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False, True, False, True, False]])
    found = compare(scores, valid)
    for row in range(2):
        for text, there in enumerate(valid):
            share = scores[row, text, there].softmax(0)
            torch.testing.assert_close(found[row, text, there], (there.sum() * share).log())
    assert torch.equal(compare(torch.ones(1, 3, 5, 4), valid)[0, 0], torch.zeros(5, 4))
    assert compare(scores, torch.zeros_like(valid)).isfinite().all()  # a text without tokens


def test_some_units_see_the_text_and_padding_changes_nothing(states):
    probe = probe_over("states", compared=4)
    alone = probe_over("states", compared=0)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 5])
    moved = {site: state.clone() for site, state in states.items()}
    for state in moved.values():
        state[0, 4] += 3.0  # another token
        state[1, 4] += 3.0  # padding
    for one, sees in ((probe, True), (alone, False)):
        change = (one.logits(moved, valid) - one.logits(states, valid)).detach().abs()
        assert bool((change[:, 0, :4] > 0).any()) == sees
        assert float(change[:, 1, :3].max()) == 0 and float(change[:, 2].max()) == 0


SOME = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False, True, True, True, False]])


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("widths", [WIDTHS, {0: 4, 1: 4, 2: 4}])  # networks one by one, and together
def test_a_gate_with_context_reads_the_token_beside_its_text(widths, members):
    torch.manual_seed(1)
    states = {site: torch.randn(3, 5, width) for site, width in widths.items()}
    rows = rows_for("inputs", [0, 1, 2])
    probe = Probe(rows, widths, True, hidden=8, compared=0, sums=False, members=members, context=True)
    probe.fit_statistics(states, SOME)
    for p in probe.parameters():
        torch.nn.init.normal_(p)
        p.data.mul_(3.0)
    logits, this = probe.logits(states, SOME, members - 1), members - 1
    for i, row in enumerate(rows):
        gate, context, own = probe.gate(i), probe.contexts[i], states[row.reads[-1]]
        for text, there in enumerate(SOME):
            inside = own[text, there]
            around = torch.cat([inside[0], inside[-1], inside.mean(0)])
            for token in there.nonzero()[:, 0].tolist():
                read = torch.cat([states[site][text, token] for site in row.reads])
                units = gate.hidden.weight[this] @ ((read - gate.mean) / gate.scale) + gate.hidden_bias[this]
                units = units + CAREFUL * context.weight[this] @ ((around - context.mean) / context.scale)
                raw = gate.bias[this] + 10 * gate.out.weight[this, 0] @ torch.tanh(units)
                expected = raw.clamp(*probe.limits)
                torch.testing.assert_close(logits[i, text, token], expected, rtol=1e-4, atol=1e-4)
    assert logits.std() > 0.1


def test_context_says_nothing_at_first_and_then_learns(states):
    probe, without = probe_over("inputs", context=True), probe_over("inputs")
    torch.testing.assert_close(probe.logits(states, VALID), without.logits(states, VALID))
    probe.logits(states, VALID).sum().backward()
    assert all(one.weight.grad.abs().min() > 0 for one in probe.contexts)
    assert [id(probe.contexts[1].weight) in map(id, probe.weights_of(row)) for row in range(3)] == [0, 1, 0]


def test_context_is_standardised_over_texts(states):
    probe = probe_over("states", context=True)
    probe.fit_statistics(states, SOME)
    last = torch.stack([states[1][text, there][-1] for text, there in enumerate(SOME)])
    torch.testing.assert_close(probe.contexts[1].mean[4:8], last.mean(0))  # after the first
    torch.testing.assert_close(probe.contexts[1].scale[4:8], last.std(0))


def test_a_text_without_tokens_has_a_summary(states):
    assert summary(states[0], torch.zeros_like(SOME)).isfinite().all()


def test_of_few_units_at_most_half_are_compared():
    assert GateNetwork(4, 6, compared=16).compared == 3


def test_inward_gradients_lead_back_inside():
    value = torch.tensor([-7.0, -7.0, -1.0, 2.0, 7.0, 7.0], requires_grad=True)
    push = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])  # descent moves a value against its gradient
    out = inward(value, -4.0, 5.0)
    assert out.tolist() == [-4.0, -4.0, -1.0, 2.0, 5.0, 5.0]
    (out * push).sum().backward()
    assert value.grad.tolist() == [0.0, -1.0, 1.0, -1.0, 1.0, 0.0]


def test_open_votes_keep_a_token_as_one_open_gate_does():
    rows = rows_for("inputs", range(14))
    widths = dict.fromkeys(range(14), 4)
    probe = Probe(rows, widths, True, hidden=4, sums=False)
    for i in range(14):
        probe.gate(i).bias.data.fill_(99.0)
    states = {site: torch.zeros(1, 3, 4) for site in range(14)}
    kept = probe.log_keep(states, torch.ones(1, 3, dtype=torch.bool))[-1].exp()
    single = HardConcrete(torch.tensor(5.0)).prob_nonzero()
    assert kept.min().item() == pytest.approx(single.item(), abs=2e-4)


def test_an_unknown_gate_is_an_error():
    with pytest.raises(TrainingError, match="'inward', 'tanh', 'plain'"):
        GateNetwork(4, 8, gate="relu")
