"""What holds the margin: the biases of a lens's gates, and the multipliers of single texts, step by step."""

from dataclasses import replace

import pytest
import torch

from lens_parts import QUICK, objective
from masklens.diffmask.multipliers import AIM, MEMORY, OPENING, TRAVEL, Multipliers, Offsets, Prices
from masklens.diffmask.networks import LIMIT
from masklens.diffmask.trainer import Training

STEPS = 100


def offsets(margin=0.1, hard_texts=MEMORY, first=0.0):
    """Of two rows; with as many hard-masked texts as are remembered, only the last step counts."""
    made = objective()
    for gate in made.probe.gates:
        gate.bias.fill_(first)
    return Offsets(made.probe, margin, STEPS, hard_texts), made.probe


def biases(probe):
    return [float(gate.bias) for gate in probe.gates]


def test_a_bias_falls_under_the_margin_and_rises_over_it():
    made, probe = offsets()
    made.update(torch.tensor([0.0, 2 * AIM * 0.1]), rate=1.0)
    speed = TRAVEL / STEPS
    assert biases(probe) == pytest.approx([-speed, speed], rel=1e-4)


def test_a_bias_moves_in_proportion_and_stays_at_the_margin():
    made, probe = offsets()
    made.update(torch.tensor([AIM * 0.1, 0.5 * AIM * 0.1]), rate=1.0)
    assert biases(probe) == pytest.approx([0.0, -0.5 * TRAVEL / STEPS], abs=1e-6)


def test_a_bias_rises_at_most_twice_as_fast_as_it_falls():
    made, probe = offsets()
    made.update(torch.tensor([0.0, 1e9]), rate=0.5)
    fallen, risen = biases(probe)
    assert risen == pytest.approx(-OPENING * fallen) and OPENING == 2
    assert fallen == pytest.approx(-0.5 * TRAVEL / STEPS)  # at half the speed


def test_it_does_not_matter_in_which_units_the_divergence_is():
    moved = []
    for unit in (1.0, 7.0):
        made, probe = offsets(margin=0.1 * unit)
        made.update(unit * torch.tensor([0.02, 0.13]), rate=1.0)
        moved.append(biases(probe))
    assert moved[0] == pytest.approx(moved[1], rel=1e-4)


def test_the_divergence_is_a_running_mean_over_so_many_texts():
    made, _ = offsets(hard_texts=MEMORY // 4)
    expected = AIM * 0.1
    for step in range(6):
        seen = 0.3 if step % 2 else 0.0
        made.update(torch.tensor([seen, seen]), rate=1.0)
        expected = 0.75 * expected + 0.25 * seen
        assert made.divergence.tolist() == pytest.approx([expected, expected], rel=1e-4)
    alone, _ = offsets(hard_texts=2 * MEMORY)
    alone.update(torch.tensor([0.0, 0.3]), rate=1.0)
    assert alone.divergence.tolist() == pytest.approx([0.0, 0.3])


def test_a_bias_stays_within_its_limits():
    made, probe = offsets()
    for _ in range(5 * STEPS):
        made.update(torch.tensor([0.0, 9.0]), rate=1.0)
    low, high = biases(probe)
    made.update(torch.tensor([0.0, 9.0]), rate=1.0)
    assert biases(probe) == [low, high] and low == -high and high >= LIMIT


def test_a_row_with_all_its_gates_shut_opens_again():
    """Its networks are of no use and get no gradient: opening takes none."""
    made = objective()
    training = Training(made, QUICK)
    training.optimizer = torch.optim.SGD([{"params": list(made.probe.parameters()), "peak": 0.0}], lr=0.0)
    made.probe.gate(0).bias.fill_(-LIMIT)
    shut, other = made.judge()
    assert shut.kept == 0 and shut.divergence > 3 * QUICK.margin and other.kept == 1
    training.run()
    assert made.judge()[0].kept == 1


def test_multipliers_of_single_texts_climb_over_the_margin_and_fall_under_it():
    multipliers = Multipliers(4, 0.1, torch.device("cpu"))
    assert multipliers.values.tolist() == [1.0] * 4
    divergence = torch.tensor([0.3, 0.0, 0.1, 900.0])
    assert multipliers.penalty(divergence).tolist() == pytest.approx([0.2, -0.1, 0.0, 899.9])
    multipliers.update(divergence)
    # 0.2 over the margin; 0.1 under it; at it; and a violation counts for at most ten margins
    assert multipliers.values.tolist() == pytest.approx([1.02, 0.99, 1.0, 1.1])
    multipliers.update(divergence, speed=5.0, floor=1.05)
    assert multipliers.values.tolist() == pytest.approx([1.12, 1.05, 1.05, 1.6])
    assert multipliers.penalty(divergence).tolist() == pytest.approx([0.224, -0.105, 0.0, 1.6 * 899.9])


def test_multipliers_of_single_texts_stay_within_their_limits():
    multipliers = Multipliers(2, 0.1, torch.device("cpu"))
    for _ in range(3000):
        multipliers.update(torch.tensor([0.0, 9.0]))
    assert multipliers.values.tolist() == [0.0, 200.0]


def test_multipliers_of_texts_that_are_lost_are_doubled():
    multipliers = Multipliers(4, 0.1, torch.device("cpu"))
    multipliers.values = torch.tensor([1.0, 2.0, 150.0, 1.0])
    multipliers.raise_where(torch.tensor([True, True, True, False]))
    assert multipliers.values.tolist() == [3.0, 4.0, 200.0, 1.0]


def test_a_price_balances_what_opens_gates_and_what_shuts_them():
    prices = Prices(3, torch.device("cpu"))
    assert prices.values.tolist() == [Prices.LEAST] * 3
    for _ in range(2000):
        prices.update(torch.tensor([0.6, 0.001, -0.5]), torch.tensor([0.2, 0.2, 0.2]))
    assert prices.values.tolist() == pytest.approx([3.0, Prices.LEAST, Prices.LEAST], rel=1e-4)
    for _ in range(2000):  # a row that needs less becomes cheap again
        prices.update(torch.tensor([0.3, 0.001, -0.5]), torch.tensor([0.2, 0.2, 0.2]))
    assert float(prices.values[0]) == pytest.approx(1.5, rel=1e-4)


def test_at_its_price_the_loss_pushes_a_rows_gates_neither_way():
    """Averaged over steps, the gradient of the loss with respect to the bias goes to nothing."""
    settings = replace(QUICK, margin=0.01)
    made = objective(settings)
    for bias in made.probe.biases:
        bias.fill_(0.0)  # every gate is undecided, none is near the ends of what gates are sampled with
    training, pushes = Training(made, settings), []
    with training.watched():
        for step in range(400):
            loss = training.loss(made.terms(step))
            pushes.append(torch.stack(torch.autograd.grad(loss, training.probe.biases)))
            training._hold_margin(*training.gradients(step), rate=0.0)  # nothing moves but the prices
    assert (training.prices.values > 2 * Prices.LEAST).all()
    single, later = torch.stack(pushes).abs().mean(0), torch.stack(pushes[200:]).mean(0)
    assert (later.abs() < 0.1 * single).all()
