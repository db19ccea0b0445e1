"""The Hard Concrete against Monte Carlo, numerical integration and the formulas written a second time."""

import math

import pytest
import torch

from masklens.diffmask.gates import HardConcrete

LOGITS = [-50.0, -5.0, -1.0, 0.0, 2.0, 5.0, 50.0]
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def draw(logits, count, dtype=torch.float64):
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
    torch.manual_seed(0)
    gate = HardConcrete(logits)
    share = (gate.rsample(torch.Size([200_000])) != 0).float().mean(0)
    assert torch.allclose(gate.prob_nonzero(), share, atol=4e-3)
    assert torch.allclose(gate.prob_nonzero(), torch.sigmoid(logits + 0.2 * math.log(5)))
    assert float(gate.prob_nonzero()[4]) == pytest.approx(0.9951, abs=1e-4)


@pytest.mark.parametrize("logit", [-3.0, 0.0, 1.5, 4.0])
def test_density_integrates_to_the_share_of_samples_between(logit):
    gate = HardConcrete(torch.tensor(logit, dtype=torch.float64))
    z = torch.linspace(1e-9, 0.999, 200_001, dtype=torch.float64)
    mass = torch.trapezoid(gate.log_prob(z).exp(), z)
    _, samples = draw([logit], 400_000)
    share = ((samples > 0) & (samples <= 0.999)).double().mean()
    assert float(mass) == pytest.approx(float(share), abs=4e-3)
    at_zero = gate.log_prob(torch.zeros((), dtype=torch.float64)).exp()
    assert float(at_zero + mass) == pytest.approx(float(gate.cdf(z[-1])), abs=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cdf_against_monte_carlo(value):
    logits = [-1.0, 0.0, 2.0]
    _, z = draw(logits, 200_000)
    gate = HardConcrete(torch.tensor(logits, dtype=torch.float64))
    expected = (z <= value).double().mean(0)
    assert torch.allclose(gate.cdf(torch.tensor(value, dtype=torch.float64)), expected, atol=5e-3)


def test_cdf_ends():
    gate = HardConcrete(torch.tensor([0.0]))
    assert float(gate.cdf(torch.tensor([-0.1]))) == 0.0
    assert float(gate.cdf(torch.tensor([1.0]))) == 1.0


def test_log_prob_is_the_derivative_of_the_cdf():
    gate = HardConcrete(torch.tensor(0.7, dtype=torch.float64))
    z = torch.tensor([0.05, 0.3, 0.8], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(gate.cdf(z).sum(), z)
    assert torch.allclose(gate.log_prob(z.detach()).exp(), slope, rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_extreme_logits_stay_finite(dtype):
    logits = torch.tensor(LOGITS, dtype=dtype, requires_grad=True)
    gate = HardConcrete(logits)
    torch.manual_seed(0)
    z = gate.rsample(torch.Size([2000]))
    assert z.dtype == dtype and bool((z >= 0).all()) and bool((z < 1).all())
    log_p = gate.log_prob_nonzero()
    for value in (gate.log_prob(z), log_p, gate.log_prob_zero(), gate.cdf(z)):
        assert value.dtype == dtype and bool(value.isfinite().all())
    (gradient,) = torch.autograd.grad(z.float().sum() + log_p.float().sum(), logits)
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


def test_validation_names_the_bad_argument():
    with pytest.raises(ValueError, match="gamma < 0 < zeta"):
        HardConcrete(torch.zeros(1), gamma=0.1)
    with pytest.raises(ValueError, match="support"):
        HardConcrete(torch.zeros(1), validate_args=True).log_prob(torch.tensor([1.5]))
