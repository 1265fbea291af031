from __future__ import annotations

import math

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import BatchClip, JointSchedule, RecordClip, rate_for, sigma_for, uses_for
from fedsink.privacy.accounting.accountants import (
    pld_epsilon,
    poisson_gaussian_epsilon,
    rdp_epsilon,
)
from fedsink.privacy.accounting.calibration import delta_for
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.mechanisms import Gaussian

SETTINGS = [
    pytest.param(10.0, 0.2, 300, "pld", id="record-clip"),
    pytest.param(1.0, 0.05, 50, "pld", id="small-epsilon"),
    pytest.param(40.0, 1.0, 3, "pld", id="large-epsilon"),
    pytest.param(10.0, 0.2, 300, "rdp", id="rdp"),
    pytest.param(5.0, 0.1, 20, "prv", id="prv"),
]


@pytest.mark.medium
@pytest.mark.quick("record-clip")
@pytest.mark.parametrize(("eps", "rate", "uses", "accountant"), SETTINGS)
def test_sigma_costs_at_most_the_target_and_is_tight(eps, rate, uses, accountant):
    sigma = sigma_for(eps, rate=rate, uses=uses, delta=1e-5, accountant=accountant)
    assert poisson_gaussian_epsilon(rate, sigma, uses, 1e-5, accountant) <= eps
    assert poisson_gaussian_epsilon(rate, sigma * 0.999, uses, 1e-5, accountant) > eps


@pytest.mark.medium
@pytest.mark.quick("record-clip")
@pytest.mark.parametrize(("eps", "rate", "uses", "accountant"), SETTINGS)
def test_rate_costs_at_most_the_target_and_is_tight(eps, rate, uses, accountant):
    found = rate_for(eps, sigma=2.0, uses=uses, delta=1e-5, accountant=accountant)
    assert 0 < found <= 1
    assert poisson_gaussian_epsilon(found, 2.0, uses, 1e-5, accountant) <= eps
    if found < 1:
        assert poisson_gaussian_epsilon(found * 1.001, 2.0, uses, 1e-5, accountant) > eps


@pytest.mark.medium
@pytest.mark.parametrize(("eps", "rate", "uses", "accountant"), SETTINGS)
def test_uses_cost_at_most_the_target_and_are_tight(eps, rate, uses, accountant):
    most = uses_for(eps, rate=rate, sigma=2.0, delta=1e-5, accountant=accountant)
    more = max(most + 1, math.ceil(most * 1.001))
    assert isinstance(most, int)
    assert poisson_gaussian_epsilon(rate, 2.0, most, 1e-5, accountant) <= eps
    assert poisson_gaussian_epsilon(rate, 2.0, more, 1e-5, accountant) > eps


@pytest.mark.slow
def test_published_rounds_and_noise():
    most = uses_for(10, rate=1 / 1200, sigma=1.1, delta=1e-5)
    assert most == pytest.approx(4_467_993, rel=1e-3)
    assert pld_epsilon(1 / 1200, 1.1, most, 1e-5) <= 10
    sigma = sigma_for(10, rate=1 / 1200, uses=3_986_344, delta=1e-5, accountant="rdp")
    assert sigma == pytest.approx(1.1, rel=1e-3)
    assert rdp_epsilon(1 / 1200, sigma, 3_986_344, 1e-5) <= 10


@pytest.mark.parametrize("eps", [0.05, 1.0, 30.0])
def test_one_use_without_sampling_is_the_analytic_gaussian(eps):
    sigma = sigma_for(eps, rate=1.0, uses=1, delta=1e-5)
    assert sigma == pytest.approx(Gaussian(1.0, eps, 1e-5).scale, rel=2e-3)


def test_a_rate_that_need_not_be_bounded_is_one():
    assert rate_for(10, sigma=5.0, uses=2, delta=1e-5) == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("above", [1.0000001, 1.0005, 1.002])
def test_a_target_that_just_pays_for_one_use_is_one_use(above):
    one = pld_epsilon(0.1, 1.0, 1, 1e-5)
    assert uses_for(one * above, rate=0.1, sigma=1.0, delta=1e-5) == 1


@pytest.mark.medium
@pytest.mark.parametrize("clip", [BatchClip(1.0), RecordClip(1.0)])
@pytest.mark.parametrize(
    "adjacency", ["add-remove", pytest.param("replace-one", marks=pytest.mark.medium)]
)
def test_delta_is_solved_for_under_each_adjacency(clip, adjacency):
    cost = Cost(clip, JointSchedule(), adjacency, None, None)
    setting = {"rate": 0.1, "sigma": 2.0, "uses": 50}
    delta = delta_for(3.0, **setting, cost=cost)
    assert cost.epsilon(**setting, delta=delta) <= 3.0 < cost.epsilon(**setting, delta=delta / 1.02)
    least = delta_for(60.0, **setting, cost=cost)
    assert least == (1e-11 if adjacency == "replace-one" else 1e-12)


def test_a_target_below_one_use_is_refused():
    with pytest.raises(PrivacyError, match=r"one use at rate=1 and sigma=1 costs ε = 4\.\d+, more"):
        uses_for(0.5, rate=1.0, sigma=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": 0}, "eps must be a finite number > 0, received 0"),
        ({"eps": -1.0}, "eps must be a finite number > 0, received -1.0"),
        ({"eps": math.inf}, "eps must be a finite number > 0, received inf"),
        ({"delta": 0}, r"delta must lie in \(0, 1\), received 0"),
        ({"rate": 1.3}, r"rate must lie in \(0, 1\], received 1.3"),
        ({"uses": 0}, "uses must be an integer ≥ 1, received 0"),
        ({"accountant": "moments"}, "accountant='moments' is unknown"),
    ],
)
def test_bad_targets_are_refused(changes, message):
    arguments = {"eps": 1.0, "rate": 0.1, "uses": 10, "delta": 1e-5} | changes
    with pytest.raises(PrivacyError, match=message):
        sigma_for(**arguments)


@pytest.mark.medium
@pytest.mark.quick("1.0-1e-300", "1.0-5e-12")
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-12, 5e-12, 6e-12, 1e-5, 0.5])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_every_delta_has_an_answer_in_every_direction(delta, rate):
    eps, uses = 10.0, 30
    sigma = sigma_for(eps, rate=rate, uses=uses, delta=delta)
    assert pld_epsilon(rate, sigma, uses, delta) <= eps
    most = uses_for(eps, rate=rate, sigma=1.01 * sigma, delta=delta)
    assert most >= uses
    assert pld_epsilon(rate, 1.01 * sigma, most, delta) <= eps
    found = rate_for(eps, sigma=sigma, uses=uses, delta=delta)
    assert found >= 0.99 * rate
    assert pld_epsilon(found, sigma, uses, delta) <= eps


@pytest.mark.medium
@pytest.mark.parametrize(
    ("eps", "rate", "uses", "delta"),
    [(1e-3, 0.3, 1, 0.5), (10.0, 0.02, 30, 0.9), (1.0, 1e-6, 2, 1e-5)],
)
def test_a_noise_that_delta_alone_would_pay_is_never_chosen(eps, rate, uses, delta):
    """At the noise that was found, the output gave away whoever was sampled."""
    with pytest.raises(PrivacyError, match=r"delta=.* alone would pay .* state sigma yourself"):
        sigma_for(eps, rate=rate, uses=uses, delta=delta)
    assert pld_epsilon(rate, 0.003, 1, delta) >= 0  # it may be typed


def test_an_epsilon_in_the_thousands_may_be_asked_for():
    sigma = sigma_for(5000.0, rate=1.0, uses=1, delta=1e-5)
    assert 4900 < pld_epsilon(1.0, sigma, 1, 1e-5) <= 5000


def test_the_noise_of_a_client_of_many_records_is_found():
    cost = Cost(RecordClip(1.0), JointSchedule(), "client", capacity=10**8)
    sigma = sigma_for(1.0, rate=0.1, uses=1, delta=1e-5, cost=cost)
    assert sigma == pytest.approx(10**8 * sigma_for(1.0, rate=1.0, uses=1, delta=1e-5), rel=2e-3)
