from __future__ import annotations

import logging
import math
import subprocess
import sys
import time

import dp_accounting
import mpmath
import numpy as np
import opacus.accountants
import pytest
from scipy.optimize import brentq

from fedsink.errors import PrivacyError
from fedsink.privacy import epsilon, poisson_gaussian
from fedsink.privacy.accounting.accountants import (
    ACCOUNTANTS,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    pld_epsilon,
    pld_epsilon_on_grid,
    poisson_gaussian_epsilon,
    prv_epsilon,
    prv_points,
    rdp_epsilon,
    rdp_opacus_epsilon,
)

MNIST = (1 / 1200, 1.1)
FASHION = (1 / 1200, 0.9)
CELEBA = (200 / 162770, 0.8)


# The reference table of the published settings (DP-Sinkhorn, Section 5).


@pytest.mark.medium
@pytest.mark.parametrize(
    ("uses", "rdp", "pld"),
    [(100_000, 1.243, 1.138), (1_000_000, 4.444, 4.114), (3_400_000, 9.085, 8.463)],
)
def test_published_mnist_row(uses, rdp, pld):
    assert rdp_epsilon(*MNIST, uses, 1e-5) == pytest.approx(rdp, abs=6e-4)
    assert pld_epsilon(*MNIST, uses, 1e-5) == pytest.approx(pld, abs=6e-4)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("uses", "prv"),
    [
        (100_000, 1.147),
        pytest.param(1_000_000, 4.120, marks=pytest.mark.slow),
        pytest.param(3_400_000, 8.464, marks=pytest.mark.slow),
    ],
)
def test_published_mnist_rows_by_prv(uses, prv):
    assert prv_epsilon(*MNIST, uses, 1e-5) == pytest.approx(prv, abs=6e-4)


@pytest.mark.medium
@pytest.mark.quick("mnist")
@pytest.mark.parametrize(
    ("setting", "delta", "rdp", "pld"),
    [
        (MNIST, 1e-5, 3_986_344, 4_467_993),
        (FASHION, 1e-5, 2_096_012, 2_353_406),
        (CELEBA, 1e-6, 530_396, 590_983),
    ],
    ids=["mnist", "fashion", "celeba"],
)
def test_published_largest_number_of_rounds_within_ten(setting, delta, rdp, pld):
    assert rdp_epsilon(*setting, rdp, delta) == pytest.approx(10, abs=1e-4)
    assert pld_epsilon(*setting, pld, delta) <= 10.0001
    assert pld_epsilon_on_grid(*setting, round(pld * 1.001), delta, 1e-4) > 10


@pytest.mark.medium
@pytest.mark.quick("1e-06-*")
@pytest.mark.parametrize(("delta", "pld", "rdp"), [(1e-6, 14.54, 15.4), (1e-5, 13.28, 14.2)])
def test_published_celeba_run_costs_far_more_than_ten(delta, pld, rdp):
    assert pld_epsilon(*CELEBA, 1_100_000, delta) == pytest.approx(pld, abs=0.06)
    assert rdp_epsilon(*CELEBA, 1_100_000, delta) == pytest.approx(rdp, abs=0.06)


@pytest.mark.medium
def test_grid_trap_a_single_grid_is_wrong_over_millions_of_compositions():
    """T = 4,467,993 costs 9.999; a grid of 1e-3 says 11.25 and one of 1e-5 says 10.23."""
    uses = 4_467_993
    assert pld_epsilon_on_grid(*MNIST, uses, 1e-5, 1e-3) == pytest.approx(11.25, abs=0.01)
    assert pld_epsilon(*MNIST, uses, 1e-5) == pytest.approx(9.999, abs=0.002)


@pytest.mark.slow
def test_grid_trap_too_fine_a_grid_accumulates_error():
    assert pld_epsilon_on_grid(*MNIST, 4_467_993, 1e-5, 1e-5) == pytest.approx(10.23, abs=0.02)


# GS-WGAN (mathematics of Chen et al. 2020): 20,000 iterations at σ = 1.07, batches of 32 rows.


@pytest.mark.medium
def test_gs_wgan_as_published_counts_every_row_as_its_own_sample():
    ledger = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    one = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 1, dp_accounting.GaussianDpEvent(1.07)
    )
    ledger.compose(one, 20_000 * 32)
    classic = np.min(ledger._rdp - math.log(1e-5) / (np.asarray(ledger._orders) - 1))
    assert classic == pytest.approx(9.993, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "pld"), [(1.07, 329), (1.07 / 2, 2058)])
def test_gs_wgan_with_the_batch_selected_together_and_with_the_supplements_noise(sigma, pld):
    assert pld_epsilon(1 / 1000, sigma / math.sqrt(32), 20_000, 1e-5) == pytest.approx(pld, abs=1)


# Closed form and other implementations.


@pytest.mark.parametrize(("sigma", "uses"), [(0.7, 1), (2.0, 10), (30.0, 3000)])
def test_without_sampling_every_accountant_bounds_the_exact_gaussian(sigma, uses):
    """T Gaussians of multiplier σ equal one of σ/√T with a known exact ε (Balle and Wang)."""
    multiplier, delta = sigma / math.sqrt(uses), 1e-5
    exact = brentq(lambda e: math.log(max(gaussian_delta(multiplier, e), 1e-300) / delta), 1e-3, 99)
    assert pld_epsilon(1.0, sigma, uses, delta) == pytest.approx(exact, rel=1e-9)
    assert exact <= prv_epsilon(1.0, sigma, uses, delta) <= exact + 0.03
    assert exact <= rdp_epsilon(1.0, sigma, uses, delta) <= exact * 1.15


@pytest.mark.medium
@pytest.mark.parametrize(("rate", "sigma", "uses"), [(0.2, 2.0, 300), (0.01, 1.0, 5000)])
def test_rdp_and_prv_agree_with_opacus(rate, sigma, uses):
    for accountant, ledger, room in [
        ("rdp", opacus.accountants.RDPAccountant(), 0.01),
        ("rdp-opacus", opacus.accountants.RDPAccountant(), 0.01),
        ("prv", opacus.accountants.PRVAccountant(), 1e-9),
    ]:
        ledger.history = [(sigma, rate, uses)]
        ours = poisson_gaussian_epsilon(rate, sigma, uses, 1e-5, accountant)
        assert ours == pytest.approx(ledger.get_epsilon(1e-5), rel=room)


@pytest.mark.medium
@pytest.mark.parametrize(("rate", "sigma", "uses"), [(0.2, 2.0, 300), (0.01, 1.0, 5000)])
def test_pld_and_rdp_agree_with_dp_accounting(rate, sigma, uses):
    event = poisson_gaussian(rate, sigma, uses)
    pld = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4).compose(event)
    rdp = dp_accounting.rdp.RdpAccountant().compose(event)
    assert epsilon(event, 1e-5) == pytest.approx(pld.get_epsilon(1e-5), rel=1e-9)
    assert epsilon(event, 1e-5, "rdp") == pytest.approx(rdp.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "sigma", "uses"), [(1e-5, 0.33, 300), (0.001, 65.0, 1_000_000), (1e-5, 0.07, 1)]
)
def test_where_the_grid_is_coarse_pld_never_exceeds_rdp_by_more_than_a_percent(rate, sigma, uses):
    assert 0 < pld_epsilon(rate, sigma, uses, 1e-5) <= 1.01 * rdp_epsilon(rate, sigma, uses, 1e-5)


@pytest.mark.medium
def test_small_losses_over_many_uses_are_not_rounded_up_by_the_grid():
    """Few uses with little noise and many with much are one Gaussian in the limit."""
    rate, sigma, delta = 0.2, 1000.0, 1e-5
    few = pld_epsilon(rate, sigma / 100, 20, delta)
    many = pld_epsilon(rate, sigma, 200_000, delta)
    assert pld_epsilon_on_grid(rate, sigma, 200_000, delta, 1e-3) > 1.2 * few
    assert many == pytest.approx(few, rel=0.12)


@pytest.mark.medium
@pytest.mark.parametrize("delta", [1e-7, 1e-9, 1e-11, 6e-12, 1e-13])
def test_pld_is_an_upper_bound_at_any_delta(delta):
    """At a rate that is 1 but for a billionth the exact Gaussian is a lower bound, nearly."""
    sigma, uses = 30.0, 20_000
    exact = gaussian_epsilon(sigma / uses**0.5, delta)
    assert pld_epsilon(1 - 1e-9, sigma, uses, delta) >= exact * (1 - 1e-6)


@pytest.mark.parametrize("multiplier", [10.0, 999.9, 1e3, 1e6, 1e8, 1e10, 1e15])
@pytest.mark.parametrize("shift", [0.0, 1e-3, 1.0, 5.0, 20.0, 30.0])
def test_the_exact_delta_keeps_its_digits_where_its_terms_cancel(multiplier, shift):
    with mpmath.workdps(60):
        sigma, eps = mpmath.mpf(multiplier), mpmath.mpf(shift / multiplier)
        cdf = [mpmath.ncdf(sign / (2 * sigma) - eps * sigma) for sign in (1, -1)]
        exact = float(cdf[0] - mpmath.exp(eps) * cdf[1])
    assert gaussian_delta(multiplier, shift / multiplier) == pytest.approx(exact, rel=1e-8, abs=0)


def test_beyond_every_float_an_exact_delta_is_zero():
    for multiplier in (1e4, 1e10, 1e300):
        assert [gaussian_delta(multiplier, eps) for eps in (1.0, 1e300, math.inf)] == [0.0] * 3
        assert gaussian_delta(multiplier, 0.0) == pytest.approx(
            0.3989422804 / multiplier, rel=1e-8, abs=0
        )


def test_what_no_multiplier_reaches_is_refused():
    with pytest.raises(PrivacyError, match="needs a noise multiplier above 1e9"):
        gaussian_multiplier(1e-12, 1e-15)
    assert gaussian_delta(gaussian_multiplier(1e-6, 1e-9), 1e-6) <= 1e-9
    assert gaussian_epsilon(1e-10, 1e-5) == math.inf


def test_where_no_grid_serves_the_lesser_of_two_bounds_is_the_answer_at_once():
    for setting in ((0.5, 1e-3, 1000, 1e-5), (0.2, 2.0, 300, 1e-12), (0.2, 1e3, 1, 1e-300)):
        _, sigma, uses, delta = setting
        whole = gaussian_epsilon(sigma / math.sqrt(uses), delta)
        assert pld_epsilon(*setting) == min(rdp_epsilon(*setting), whole)
    assert pld_epsilon(0.5, 1e-3, 1000, 1e-5) > 1e5


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 5e-12, 1e-9, 0.01, 0.5, 1 - 1e-16])
def test_epsilon_is_a_number_of_at_least_0_over_the_whole_range_or_there_is_a_sentence(
    accountant, delta
):
    settings = [(0.001, 1.5, 10), (1e-9, 2.0, 1), (1.0, 1e3, 1), (0.3, 1e-9, 3), (0.1, 1e6, 100)]
    for setting in settings:
        try:
            found = poisson_gaussian_epsilon(*setting, delta, accountant)
        except PrivacyError:
            assert accountant == "prv"
        else:
            assert found >= 0


def test_prv_is_measured_before_it_starts():
    setting = (1 / 1200, 1.1, 400, 1e-5)
    ledger = opacus.accountants.PRVAccountant()
    ledger.history = [(1.1, 1 / 1200, 400)]
    grid = len(ledger._get_dprv(eps_error=0.01, delta_error=1e-8))
    assert prv_points(*setting) == pytest.approx(grid, rel=0.05)
    started = time.perf_counter()
    for beyond in (
        (0.5, 0.01, 1000, 1e-5), (1 / 1200, 1.1, 10**9, 1e-5), (0.1, 1.0, 10, 1e-300),
    ):  # fmt: skip
        with pytest.raises(PrivacyError, match=r"the accountant prv has no answer at .*: take pld"):
            poisson_gaussian_epsilon(*beyond, "prv")
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("setting", "uses"),
    [(MNIST, 100_000), (MNIST, 3_400_000), ((0.2, 2.291), 400), ((1.0, 3.0), 7)],
)
def test_the_rdp_of_both_libraries_agrees(setting, uses):
    ours = rdp_epsilon(*setting, uses, 1e-5)
    assert rdp_opacus_epsilon(*setting, uses, 1e-5) == pytest.approx(ours, rel=5e-3)


def test_every_accountant_says_which_library_it_is():
    assert next(iter(ACCOUNTANTS)) == "pld"
    assert {ACCOUNTANTS[name].library for name in ("prv", "rdp-opacus")} == {"Opacus"}
    assert {ACCOUNTANTS[name].library for name in ("pld", "rdp")} == {"dp-accounting"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 1, 1e-5), r"rate must lie in \(0, 1\], received 0.0"),
        ((0.1, 0.0, 1, 1e-5), "sigma must be a finite number > 0, received 0.0"),
        ((0.1, math.inf, 1, 1e-5), "sigma must be a finite number > 0, received inf"),
        ((0.1, 1.0, 0, 1e-5), "uses must be an integer ≥ 1, received 0"),
        ((0.1, 1.0, 2.5, 1e-5), "uses must be an integer ≥ 1, received 2.5"),
        ((0.1, 1.0, 1, 0.0), r"delta must lie in \(0, 1\), received 0.0"),
        ((0.1, 1.0, 1, 1.0), r"delta must lie in \(0, 1\), received 1.0"),
        ((0.1, 1.0, 1, 1e-5, "gdp"), "accountant='gdp' is unknown; choose one of pld, prv, rdp"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(PrivacyError, match=message):
        poisson_gaussian_epsilon(*arguments)


def test_left_out_orders_are_not_logged(caplog):
    with caplog.at_level(logging.WARNING):
        rdp_epsilon(0.2, 1.931, 300, 1e-5)
    assert not caplog.records


@pytest.mark.slow
def test_the_package_imports_without_the_accounting_libraries_and_names_the_missing_one():
    code = """
import sys
for name in ("dp_accounting", "opacus", "sklearn", "matplotlib", "torchvision", "flwr", "ray"):
    sys.modules[name] = None
from fedsink.errors import PrivacyError
import fedsink.privacy as privacy
privacy.Gaussian(1.0, 1.0, 1e-5)
for accountant, package in (("pld", "dp-accounting"), ("rdp", "dp-accounting"), ("prv", "opacus")):
    if accountant == "prv":
        del sys.modules["dp_accounting"]  # PRV's grid is as wide as Rényi DP bounds ε
    try:
        privacy.solve_account
        privacy.accounting.accountants.poisson_gaussian_epsilon(0.1, 1.0, 10, 1e-5, accountant)
    except PrivacyError as error:
        assert f"pip install {package}" in str(error), error
    else:
        raise SystemExit(f"{accountant} ran")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
