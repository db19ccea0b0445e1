"""The Hard Concrete against Monte Carlo and the formulas written a second time."""

import math

import pytest
import torch

from masklens.diffmask.gates import HardConcrete

LOGITS = [-50.0, -5.0, -1.0, 0.0, 2.0, 5.0, 50.0]


def noise(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def draw(logits, count):
    """Samples written straight from the paper's appendix B."""
    u = torch.rand(count, len(logits), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = torch.sigmoid((torch.log(u / (1 - u)) + torch.tensor(logits, dtype=torch.float64)) / 0.2)
    return u, (s * 1.2 - 0.2).clamp(min=0)


def test_rsample_is_the_papers_formula():
    u, z = draw(LOGITS, 1000)
    gate = HardConcrete(torch.tensor(LOGITS, dtype=torch.float64))
    assert torch.allclose(gate.rsample(uniform=u), z, atol=1e-9)


def test_prob_nonzero_against_monte_carlo_and_closed_form():
    logits = torch.tensor([-5.0, -1.0, 0.0, 2.0, 5.0])
    gate = HardConcrete(logits)
    share = (gate.rsample(noise(200_000, 5)) != 0).float().mean(0)
    assert torch.allclose(gate.prob_nonzero(), share, atol=4e-3)
    assert torch.allclose(gate.prob_nonzero(), torch.sigmoid(logits + 0.2 * math.log(5)))
    assert float(gate.prob_nonzero()[4]) == pytest.approx(0.9951, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_logits_stay_finite(dtype):
    logits = torch.tensor(LOGITS, dtype=dtype, requires_grad=True)
    gate = HardConcrete(logits)
    z = gate.rsample(noise(2000, len(LOGITS)))
    assert z.dtype == dtype and bool((z >= 0).all()) and bool((z < 1).all())
    log_p = gate.log_prob_nonzero()
    for value in (log_p, gate.prob_nonzero()):
        assert value.dtype == dtype and bool(value.isfinite().all())
    (gradient,) = torch.autograd.grad(z.sum() + log_p.sum(), logits)
    assert bool(gradient.isfinite().all())
    # in log space, the gate at -50 is as far from open as it should be
    assert float(log_p[0].detach()) == pytest.approx(-50 + 0.2 * math.log(5), rel=1e-2)


def test_noise_at_the_ends_of_the_interval_is_safe():
    gate = HardConcrete(torch.zeros(2))
    z = gate.rsample(uniform=torch.tensor([0.0, 1.0]))
    assert z[0] == 0 and 0.9 < z[1] < 1


def test_the_sample_has_a_gradient_in_between():
    logits = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.45], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: HardConcrete(a).rsample(uniform=u), (logits,))
