"""Gate networks and baselines: which states decide what, and the formulas written a second time slowly."""

import math

import pytest
import torch

from lens_parts import slow_baseline, slow_logits
from masklens.diffmask import networks
from masklens.diffmask.gates import HardConcrete
from masklens.diffmask.networks import (
    LIMIT,
    NOISE,
    OPEN,
    TEMPERATURE,
    GateNetwork,
    MaskRow,
    Probe,
    inward,
    kept,
    rows_for,
    sample,
)
from masklens.errors import TrainingError
from masklens.model.masking import baseline_at, mix

WIDTHS = {0: 6, 1: 4, 2: 5}
PAIRS = [(0, 2), (1, 0)]


@pytest.fixture
def states():
    generator = torch.Generator().manual_seed(0)
    return {site: torch.randn(3, 5, width, generator=generator) for site, width in WIDTHS.items()}


def probe_over(over, **options):
    """With gates that differ from token to token."""
    torch.manual_seed(0)
    probe = Probe(rows_for(over, [0, 1, 2]), WIDTHS, **{"hidden": 8, **options})
    for p in probe.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return probe


def test_rows_of_each_form():
    assert rows_for("inputs", [0, 1, 2]) == (
        MaskRow(0, 0, (0, 0)),
        MaskRow(1, 0, (0, 1)),
        MaskRow(2, 0, (0, 2)),
    )
    assert rows_for("states", [1, 2]) == (MaskRow(1, 1, (1,)), MaskRow(2, 2, (2,)))
    assert rows_for([(0, 2)], [0, 1, 2]) == (MaskRow(2, 0, (2,)),)
    with pytest.raises(TrainingError, match="'inputs', 'states', or pairs"):
        rows_for("tokens", [0])


def test_rows_over_inputs_edit_the_words_whichever_sites_are_asked_for():
    assert rows_for("inputs", [1]) == (MaskRow(1, 0, (0, 1)),)
    assert rows_for("inputs", [5], words=3) == (MaskRow(5, 3, (3, 5)),)


@pytest.mark.parametrize("over", ["inputs", "states", PAIRS])
def test_logits_are_the_papers_formula(over, states):
    probe = probe_over(over)
    every = torch.ones(states[0].shape[:2], dtype=torch.bool)
    probe.fit_statistics({site: state + 0.5 for site, state in states.items()}, every)
    for row in range(len(probe.rows)):
        probe.gate(row).bias.fill_(row - 1.0)
        found = probe.logits(row, states)
        for text in range(3):
            expected = slow_logits(probe, row, {site: state[text] for site, state in states.items()})
            torch.testing.assert_close(found[text], expected, rtol=1e-4, atol=1e-4)
        assert found.std() > 0.5 and found.abs().max() <= LIMIT


def test_gates_begin_open_whatever_they_read(states):
    probe = Probe(rows_for("inputs", [0, 1, 2]), WIDTHS)
    for row in range(3):
        assert (probe.logits(row, states) == OPEN).all()
    assert 0.95 < probe.keep(states).min() == probe.keep(states).max()


@pytest.mark.parametrize("over", ["inputs", "states", PAIRS])
def test_a_row_reads_its_sites_and_no_others(over, states):
    probe = probe_over(over)
    for i, row in enumerate(probe.rows):
        before = probe.logits(i, states)
        for site in WIDTHS:
            moved = {**states, site: states[site] + 1}
            assert torch.equal(probe.logits(i, moved), before) == (site not in row.reads)


def test_a_token_is_judged_from_its_own_states(states):
    probe = probe_over("inputs")
    moved = {site: state.clone() for site, state in states.items()}
    for state in moved.values():
        state[1, 3] += 1
    changed = (probe.keep(moved) != probe.keep(states)).nonzero().tolist()
    assert changed == [[row, 1, 3] for row in range(3)]


def test_the_sites_a_probe_needs():
    assert probe_over("inputs").reads == (0, 1, 2)
    assert Probe(rows_for("inputs", [2]), WIDTHS).reads == (0, 2)
    assert Probe(rows_for("states", [2]), WIDTHS).reads == (2,)
    assert probe_over(PAIRS).reads == (0, 2, 1)


@pytest.mark.parametrize("over", ["inputs", "states", PAIRS])
def test_rows_share_no_parameters(over, states):
    probe = probe_over(over, places=3)
    for i, row in enumerate(probe.rows):
        probe.zero_grad()
        keep = probe.logits(i, states).sigmoid()
        mix(keep, states[row.edit], probe.baseline(i)).square().sum().backward()
        taught = {name for name, p in probe.named_parameters() if p.grad is not None and p.grad.any()}
        own = {f"gates.{i}.{name}" for name in ("inner.weight", "inner.bias", "outer.weight")}
        own |= {f"baselines.{i}"} | ({f"places.{i}"} if row.edit else set())
        assert taught == own
    buffers = [gate.bias.data_ptr() for gate in probe.gates]
    assert len(set(buffers)) == len(buffers)


def test_the_bias_is_not_learned_by_gradients():
    assert not any(name.startswith("gates") and name.endswith(".bias") and "inner" not in name
                   for name, _ in probe_over("inputs").named_parameters())  # fmt: skip
    assert {"gates.0.bias", "gates.0.mean", "gates.0.scale"} <= probe_over("inputs").state_dict().keys()


def test_hidden_units_are_a_quarter_of_the_edited_width():
    probe = Probe(rows_for("states", [0, 1]), {0: 8, 1: 400})
    assert [gate.inner.out_features for gate in probe.gates] == [32, 100]
    assert probe_over("states", hidden=7).gate(2).inner.out_features == 7


def test_keep_is_the_probability_of_each_row(states):
    probe = probe_over("inputs")
    keep = probe.keep(states)
    assert keep.shape == (3, 3, 5)
    for row in range(3):
        expected = HardConcrete(probe.logits(row, states)).prob_nonzero()
        assert torch.equal(keep[row], expected) and torch.equal(probe.keep_of(row, states), expected)


@pytest.mark.parametrize("widths", [WIDTHS, dict.fromkeys(WIDTHS, 6)])
def test_rows_computed_together_are_what_each_is_alone(widths, states, monkeypatch):
    """Also their gradients; rows of one width are one product."""
    torch.manual_seed(0)
    probe = Probe(rows_for("states", [0, 1, 2]), widths, hidden=8)
    for i, p in enumerate(probe.parameters()):
        torch.nn.init.normal_(p, std=0.1 + 0.02 * i)
    given = {site: states[0 if widths[1] == 6 else site] + site for site in states}
    probe.fit_statistics(given, torch.ones(3, 5, dtype=torch.bool))
    seen = {
        row: probe.seen(row, {site: one[row : row + 1] for site, one in given.items()}) for row in range(3)
    }
    alone = torch.cat([probe.gate(row)(*one) for row, one in seen.items()])
    products, run = [], networks.side_by_side
    monkeypatch.setattr(networks, "side_by_side", lambda g, s: products.append(len(g)) or run(g, s))
    together = probe.own_logits(seen)
    assert products == ([3] if widths[1] == 6 else [1, 1, 1])
    torch.testing.assert_close(together, alone)
    learned = list(probe.gates.parameters())
    slopes = [torch.autograd.grad(one.square().sum(), learned) for one in (together, alone)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)
        assert one.any()


def test_statistics_standardise_what_a_row_reads(states):
    probe = probe_over("inputs")
    tokens = {site: 3 * state.flatten(0, 1) - 1 for site, state in states.items()}
    tokens[1][:, 2] = 0.7  # always the same: no division by 0
    probe.fit_statistics(tokens, torch.ones(len(tokens[0]), dtype=torch.bool))
    seen, gate = torch.cat([tokens[0], tokens[1]], dim=-1), probe.gate(1)
    torch.testing.assert_close(gate.mean, seen.mean(0))
    torch.testing.assert_close(gate.scale, seen.std(0).clamp(min=1e-3))
    assert probe.logits(1, {site: state[:, None] for site, state in tokens.items()}).isfinite().all()


def test_states_in_another_number_format_are_read(states):
    probe = probe_over("inputs")
    half = {site: state.bfloat16() for site, state in states.items()}
    found = probe.keep(half)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, probe.keep(states), atol=0.05, rtol=0)


def test_inward_gradients_lead_back_inside():
    value = torch.tensor([-7.0, -7.0, -1.0, 2.0, 7.0, 7.0], requires_grad=True)
    push = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])  # descent moves a value against its gradient
    out = inward(value, -4.0, 5.0)
    assert out.tolist() == [-4.0, -4.0, -1.0, 2.0, 5.0, 5.0]
    (out * push).sum().backward()
    assert value.grad.tolist() == [0.0, -1.0, 1.0, -1.0, 1.0, 0.0]


def test_a_network_beyond_the_limit_can_come_back_but_not_go_on():
    gate = GateNetwork(4, 8)
    gate.bias.fill_(-50.0)
    torch.nn.init.normal_(gate.outer.weight)
    seen = torch.randn(7, 4)
    assert (gate(seen) == -LIMIT).all()
    assert torch.autograd.grad(-gate(seen).sum(), gate.outer.weight)[0].any()  # towards open
    assert not torch.autograd.grad(gate(seen).sum(), gate.outer.weight)[0].any()


def test_certain_gates_are_drawn_as_less_certain_ones():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    for logit in (NOISE, LIMIT, -NOISE, -LIMIT):
        found = sample(torch.full((20_000,), logit), uniform)
        as_if = HardConcrete(torch.full((20_000,), math.copysign(NOISE, logit)), TEMPERATURE)
        assert torch.equal(found, as_if.rsample(uniform=uniform))
        shut = 1 / (1 + math.exp(math.copysign(NOISE, logit) - TEMPERATURE * math.log(0.2)))
        assert float((found == 0).float().mean()) == pytest.approx(shut, abs=0.01)
    inside = torch.full((20_000,), 1.3)
    assert torch.equal(sample(inside, uniform), HardConcrete(inside, TEMPERATURE).rsample(uniform=uniform))


def test_certain_gates_get_the_gradient_of_less_certain_ones():
    uniform = torch.tensor([0.03, 0.05, 0.5, 0.9, 0.97])
    for logit in (LIMIT, -LIMIT):
        certain = torch.full((5,), logit, requires_grad=True)
        less = torch.full((5,), math.copysign(NOISE, logit), requires_grad=True)
        (found,) = torch.autograd.grad(sample(certain, uniform).sum(), certain)
        (expected,) = torch.autograd.grad(
            HardConcrete(less, TEMPERATURE).rsample(uniform=uniform).sum(), less
        )
        assert torch.equal(found, expected) and found.max() > 0.1


def test_kept_is_the_papers_probability():
    logits = torch.tensor([-4.0, 0.0, 3.0])
    torch.testing.assert_close(kept(logits), torch.sigmoid(logits + 0.2 * math.log(5)))


def test_mix_keeps_and_replaces():
    state, vector, table = torch.randn(2, 3, 4), torch.randn(4), torch.randn(2, 4)
    keep = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.25]])
    by_vector, by_table = mix(keep, state, vector), mix(keep, state, table)
    for text in range(2):
        for token in range(3):
            k, own = keep[text, token], table[min(token, 1)]
            torch.testing.assert_close(by_vector[text, token], k * state[text, token] + (1 - k) * vector)
            torch.testing.assert_close(by_table[text, token], k * state[text, token] + (1 - k) * own)
    assert torch.equal(by_vector[0, 0], state[0, 0]) and torch.equal(by_table[0, 1], table[1])
    assert mix(keep, state.bfloat16(), vector).dtype == torch.bfloat16


def test_a_table_by_place_is_as_long_as_the_text():
    table, vector = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(baseline_at(table, 2), table[:2])
    assert torch.equal(baseline_at(table, 5), torch.stack([table[0], table[1], *[table[2]] * 3]))
    assert baseline_at(vector, 5) is vector
    each = torch.randn(2, 1, 4)  # one a text
    assert baseline_at(each, 5) is each


def test_each_place_has_a_baseline_but_the_words_and_the_first():
    probe = probe_over("states", places=3)
    assert list(probe.places) == ["1", "2"]
    assert [p.shape for p in probe.baselines] == [(6,), (4,), (5,)]
    assert probe.baseline(0) is probe.baselines[0]
    for row in (1, 2):
        table = baseline_at(probe.baseline(row), 7)
        for place in range(7):
            torch.testing.assert_close(table[place], slow_baseline(probe, row, place))
        assert torch.equal(table[0], probe.baselines[row]) and torch.equal(table[6], probe.baselines[row])
        assert not torch.equal(table[1], table[2])
    assert not probe_over("inputs", places=3).places
    assert not probe_over("states").places
