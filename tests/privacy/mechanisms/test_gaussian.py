from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsink.errors import PrivacyError
from fedsink.privacy import GaussianMechanism, MatchedCost, Stream, epsilon
from fedsink.privacy.accounting.accountants import gaussian_delta

EPSILONS = st.floats(0.01, 200)
DELTAS = st.floats(1e-12, 0.1)
SENSITIVITIES = st.floats(0.1, 100)


@pytest.mark.parametrize(("multiplier", "eps"), [(0.3, 4.0), (1.0, 1.0), (2.0, 0.1)])
def test_delta_is_the_hockey_stick_divergence(multiplier, eps):
    """δ(ε) = ∫ max(0, p − e^ε q), integrated numerically, for N(1, σ²) against N(0, σ²)."""

    def excess(y: float) -> float:
        p, q = stats.norm(1, multiplier).pdf(y), stats.norm(0, multiplier).pdf(y)
        return max(0.0, p - math.exp(eps) * q)

    start = 0.5 + eps * multiplier**2  # where p = e^ε q
    integral = integrate.quad(excess, start, start + 40 * multiplier)[0]
    assert gaussian_delta(multiplier, eps) == pytest.approx(integral, rel=1e-6)


@given(SENSITIVITIES, EPSILONS, DELTAS)
def test_the_exact_delta_does_not_exceed_delta_and_the_scale_is_least(sensitivity, eps, delta):
    scale = GaussianMechanism(sensitivity, eps, delta).scale
    assert gaussian_delta(scale / sensitivity, eps) <= delta
    assert gaussian_delta(scale / sensitivity * (1 - 1e-5), eps) > delta


@given(SENSITIVITIES, EPSILONS, DELTAS)
def test_epsilon_is_implied_by_the_scale_and_never_rounded_down(sensitivity, eps, delta):
    scale = GaussianMechanism(sensitivity, eps, delta).scale
    implied = GaussianMechanism.from_scale(sensitivity, scale, delta)
    assert implied.scale == scale
    assert implied.epsilon == pytest.approx(eps, rel=1e-6)
    assert gaussian_delta(scale / sensitivity, implied.epsilon) <= delta


@given(SENSITIVITIES, EPSILONS, st.floats(1e-12, 0.5))
def test_equation_5_is_enough_and_never_less_than_the_analytic_scale(sensitivity, eps, delta):
    printed = GaussianMechanism(sensitivity, eps, delta, calibration="equation5")
    assert gaussian_delta(printed.scale / sensitivity, eps) <= delta
    assert printed.scale >= GaussianMechanism(sensitivity, eps, delta).scale * (1 - 1e-9)
    assert printed.calibration == "equation5"


def test_unknown_calibrations_are_refused():
    with pytest.raises(PrivacyError, match="'classical' is unknown: choose one of analytic, equ"):
        GaussianMechanism(1.0, 1.0, 1e-5, calibration="classical")
    with pytest.raises(PrivacyError, match="'equation5' holds for delta ≤ "):
        GaussianMechanism(1.0, 1.0, 0.6, calibration="equation5")


@pytest.mark.parametrize("eps", [0.5, 5.0, 25.0])
def test_an_accountant_agrees_on_the_event(eps):
    assert epsilon(GaussianMechanism(3.0, eps, 1e-4).event, 1e-4) == pytest.approx(eps, rel=2e-3)


def test_every_coordinate_gets_independent_normal_noise_of_the_scale():
    mechanism = GaussianMechanism.from_scale(2.0, 1.276, 1e-4)
    noise = mechanism.privatize(torch.zeros(400, 50), Stream(b"key")).double().numpy()
    law = stats.norm(scale=1.276)
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 0.001
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * noise.ravel(), law.cdf).pvalue < 1e-9
    correlations = np.corrcoef(noise.T)[np.triu_indices(50, 1)]
    assert stats.kstest(correlations * math.sqrt(400), stats.norm.cdf).pvalue > 0.001


def test_the_matched_cost_is_squared_l2_with_lambda_twice_the_variance():
    mechanism = GaussianMechanism.from_scale(2.0, 1.276, 1e-4)
    assert mechanism.matched_cost == MatchedCost("squared_l2", 2 * 1.276**2)
    law = torch.distributions.Normal(0.0, mechanism.scale)
    difference = law.log_prob(torch.tensor(0.3)) - law.log_prob(torch.tensor(1.7))
    lam = mechanism.matched_cost.lam
    assert float(difference) == pytest.approx((1.7**2 - 0.3**2) / lam, rel=1e-5)


def test_noise_so_large_that_delta_alone_suffices_has_epsilon_about_zero():
    assert 0 < GaussianMechanism.from_scale(1.0, 1e6, 1e-3).epsilon < 1e-11


@pytest.mark.parametrize(("eps", "more"), [(1.0, 1.24), (10.0, 1.09), (20.0, 1.06)])
def test_equation_5_adds_as_much_more_as_is_said(eps, more):
    scales = [GaussianMechanism(1.0, eps, 1e-5, kind).scale for kind in ("equation5", "analytic")]
    assert scales[0] / scales[1] == pytest.approx(more, abs=0.006)


def test_bad_values_are_refused():
    with pytest.raises(PrivacyError, match="sensitivity must be a finite number > 0, received -2"):
        GaussianMechanism(-2, 1.0, 1e-5)
    with pytest.raises(PrivacyError, match="epsilon must be a finite number > 0, received 0"):
        GaussianMechanism(1.0, 0, 1e-5)
    with pytest.raises(PrivacyError, match=r"delta must lie in \(0, 1\), received 0"):
        GaussianMechanism(1.0, 1.0, 0)
    with pytest.raises(PrivacyError, match=r"scale must be a finite number > 0, received 0\.0"):
        GaussianMechanism.from_scale(1.0, 0.0, 1e-5)
    with pytest.raises(PrivacyError, match="values to privatize must be finite"):
        GaussianMechanism(1.0, 1.0, 0.1).privatize(torch.tensor([math.inf]), Stream(b"key"))
