from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from fedsink.clients.ledger.budget import Budget
from fedsink.errors import BudgetError, PrivacyError
from fedsink.privacy import epsilon


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.0, 1e-5), "epsilon must be a finite number > 0, received 0.0"),
        ((math.inf, 1e-5), "epsilon must be a finite number"),
        ((1.0, 1.0), r"delta must lie in \(0, 1\)"),
        ((1.0, -0.1), "delta must lie in"),
        ((1.0, 1e-5, "sum"), "admission must be one of reserve, rdp-filter, received 'sum'"),
        ((1.0, 1e-5, "reserve", 8.0), "order=8 belongs to admission='rdp-filter'"),
        ((1.0, 1e-5, "rdp-filter"), "needs a Rényi order > 1, received order=None"),
        ((1.0, 1e-5, "rdp-filter", 1.0), "needs a Rényi order > 1"),
        ((1.0, 1e-5, "rdp-filter", math.nan), "needs a Rényi order > 1"),
        ((1.0, 0.0, "rdp-filter", 8.0), "needs delta > 0"),
        ((1.0, 1e-5, "rdp-filter", 2.0), r"order 2 cannot prove ε = 1 at δ = 1e-05"),
    ],
)
def test_an_impossible_budget_is_refused(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        Budget(*values)


def test_an_order_is_a_float_wherever_it_comes_from() -> None:
    """A ledger reads it back as one, and compares the text."""
    assert repr(Budget(3.0, 1e-5, "rdp-filter", 8).order) == "8.0"


def test_a_pure_budget_has_no_delta() -> None:
    assert Budget(3.0, 0.0).delta == 0.0


def test_a_budget_without_an_order_has_no_renyi_budget() -> None:
    for ask in (lambda: Budget(1.0, 1e-5).rho, lambda: Budget(1.0, 1e-5).epsilon_of(1.0)):
        with pytest.raises(PrivacyError, match="without an order"):
            ask()


@pytest.mark.parametrize("order", [4.0, 8.0, 32.0])
def test_rho_and_epsilon_are_the_improved_conversion(order: float) -> None:
    """Canonne, Kamath, Steinke 2020, Proposition 12, with dp_accounting as reference."""
    budget = Budget(20.0, 1e-5, "rdp-filter", order)
    assert budget.epsilon_of(budget.rho) == pytest.approx(20.0)
    reference = dp.rdp.compute_epsilon([order], [budget.rho], 1e-5)[0]
    assert reference == pytest.approx(20.0)
    assert budget.epsilon_of(0.0) == 0.0


def test_the_cost_of_a_gaussian_is_alpha_over_two_sigma_squared() -> None:
    budget = Budget(10.0, 1e-5, "rdp-filter", 8.0)
    assert budget.cost(dp.GaussianDpEvent(2.0)) == pytest.approx(8.0 / (2 * 4.0))


def test_an_event_whose_divergence_is_unknown_is_refused() -> None:
    budget = Budget(10.0, 1e-5, "rdp-filter", 8.0)
    assert budget.cost(dp.NonPrivateDpEvent()) == math.inf  # known, and no budget admits it
    with pytest.raises(BudgetError, match="divergence of UnsupportedDpEvent is not known"):
        budget.cost(dp.UnsupportedDpEvent())
    with pytest.raises(BudgetError, match="not the sum of its uses"):
        budget.cost(None)


def _delta_of_gaussian(mu: float, level: np.ndarray) -> np.ndarray:
    gained = norm.cdf(mu / 2 - level / mu)
    return np.asarray(gained - np.exp(level) * norm.cdf(-mu / 2 - level / mu))


@pytest.mark.medium
def test_pitfall_15_a_pld_total_is_no_filter_and_the_renyi_filter_is_not_fooled() -> None:
    """Each path costs (3, 1e-5) by PLD; a path chosen by the first answer costs δ = 1.9e-5.

    First a Gaussian, then either a second Gaussian, whose loss matters where the first was large,
    or a rare disaster, whose loss matters everywhere else.
    """
    first, second = dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(1.9351)
    rare = dp.PoissonSampledDpEvent(9.99e-6, dp.GaussianDpEvent(0.12))
    for path in ([first, second], [first, rare]):
        ledger = PLDAccountant(value_discretization_interval=1e-3)
        assert ledger.compose(dp.ComposedDpEvent(path)).get_epsilon(1e-5) <= 3.001

    answer = np.linspace(-12.0, 12.0, 200_001)
    weight = norm.pdf(answer) / norm.pdf(answer).sum()
    left = 3.0 - (1 / 8 + answer / 2)  # ε = 3 less the loss of N(1/2, 1) against N(0, 1)
    disaster = 9.99e-6 + np.maximum(0.0, 1 - 9.99e-6 - np.exp(left))
    gaussian = _delta_of_gaussian(1 / 1.9351, left)
    real = float((weight * np.maximum(gaussian, disaster)).sum())
    assert real > 1.85e-5

    # The filter never gives more than it says, on any path, so it lets neither second step in.
    for order in (6.0, 10.0, 16.0, 32.0):
        budget = Budget(3.0, 1e-5, "rdp-filter", order)
        spent = budget.cost(first)
        for step in (second, rare):
            assert spent + budget.cost(step) > budget.rho
    # The filter does admit something: at the best order a Gaussian that costs 3 by itself fits.
    budget = Budget(3.0, 1e-5, "rdp-filter", 10.0)
    assert budget.cost(first) < budget.rho
    assert epsilon(first, 1e-5) < 3.0
