from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import LaplaceMechanism, MatchedCost, Stream, epsilon

POSITIVE = st.floats(1e-3, 1e4)


@given(POSITIVE, POSITIVE)
def test_the_scale_is_at_least_sensitivity_over_epsilon(sensitivity, eps):
    scale = LaplaceMechanism(sensitivity, eps).scale
    assert sensitivity / eps <= scale <= 1.00001 * sensitivity / eps


@given(POSITIVE, POSITIVE)
def test_the_likelihood_ratio_of_two_inputs_a_diameter_apart_is_at_most_epsilon(sensitivity, eps):
    mechanism = LaplaceMechanism(sensitivity, eps)
    assert sensitivity / mechanism.scale <= mechanism.epsilon  # sup |log p(y|x) − log p(y|x')|


@given(POSITIVE, POSITIVE)
def test_epsilon_is_implied_by_the_scale_and_never_rounded_down(sensitivity, scale):
    mechanism = LaplaceMechanism.from_scale(sensitivity, scale)
    assert mechanism.scale == scale
    assert sensitivity / scale <= mechanism.epsilon <= 1.00001 * sensitivity / scale


def test_every_coordinate_gets_independent_laplace_noise_of_the_scale():
    mechanism = LaplaceMechanism(2.0, 5.0)
    noise = mechanism.privatize(torch.zeros(400, 50), Stream(b"key")).double()
    law = stats.laplace(scale=2.0 / 5.0)
    assert stats.kstest(noise.flatten().numpy(), law.cdf).pvalue > 0.001
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * noise.flatten().numpy(), law.cdf).pvalue < 1e-9
    correlations = torch.corrcoef(noise.T)[torch.triu_indices(50, 50, 1).unbind()].numpy()
    assert stats.kstest(correlations * math.sqrt(400), stats.norm.cdf).pvalue > 0.001


def test_noise_is_added_to_the_values_as_float32():
    values = torch.arange(6.0).reshape(2, 3)
    mechanism = LaplaceMechanism(1.0, 1.0)
    private = mechanism.privatize(values, Stream(b"key"))
    noise = mechanism.privatize(torch.zeros(2, 3), Stream(b"key"))
    assert private.dtype == torch.float32
    torch.testing.assert_close(private, values + noise)


def test_the_matched_cost_is_l1_with_lambda_the_scale():
    mechanism = LaplaceMechanism(2.0, 5.0)
    assert mechanism.matched_cost == MatchedCost("l1", mechanism.scale)
    # −log p(y|x) = ‖x − y‖₁/λ + const, so Theorem 1's unit weight is λ in cost units.
    law = torch.distributions.Laplace(0.0, mechanism.scale)
    difference = law.log_prob(torch.tensor(0.3)) - law.log_prob(torch.tensor(1.7))
    assert float(difference) == pytest.approx((1.7 - 0.3) / mechanism.matched_cost.lam, rel=1e-5)


def test_an_accountant_agrees_on_the_event():
    mechanism = LaplaceMechanism(2.0, 5.0)
    assert epsilon(mechanism.event, 1e-12) == pytest.approx(5.0, rel=1e-3)


def test_bad_values_are_refused():
    with pytest.raises(PrivacyError, match="sensitivity must be a finite number > 0, received 0"):
        LaplaceMechanism(0, 1.0)
    with pytest.raises(PrivacyError, match="epsilon must be a finite number > 0, received -1"):
        LaplaceMechanism(1.0, -1)
    with pytest.raises(PrivacyError, match="scale must be a finite number > 0, received nan"):
        LaplaceMechanism.from_scale(1.0, math.nan)
    with pytest.raises(PrivacyError, match="values to privatize must be finite"):
        LaplaceMechanism(1.0, 1.0).privatize(torch.tensor([math.nan]), Stream(b"key"))
