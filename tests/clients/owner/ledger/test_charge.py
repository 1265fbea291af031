"""Budgets, and events as text."""

from __future__ import annotations

import json
import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from fedsink.clients.owner.ledger.charge import Budget, event_to_json
from fedsink.errors import PrivacyError
from fedsink.privacy import Gaussian, Laplace, ProductMechanism
from fedsink.privacy import RandomizedResponse as Response

EVENTS = [
    dp.NoOpDpEvent(),
    dp.GaussianDpEvent(1.5),
    dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(1.5)), 400),
    dp.ComposedDpEvent([dp.LaplaceDpEvent(2.0), dp.ComposedDpEvent([dp.GaussianDpEvent(3.0)])]),
    Laplace(2.0, 3.0).event,
    Gaussian(2.0, 3.0, 1e-5).event,
    ProductMechanism(Laplace(2.0, 3.0), Response(10, 1.0)).event,
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.0, 1e-5), "epsilon must be a finite number > 0, received 0.0"),
        ((math.inf, 1e-5), "epsilon must be a finite number"),
        ((1.0, 1.0), r"delta must lie in \(0, 1\)"),
        ((1.0, -0.1), "delta must lie in"),
    ],
)
def test_an_impossible_budget_is_refused(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        Budget(*values)


def test_a_pure_budget_has_no_delta() -> None:
    assert Budget(3.0, 0.0).delta == 0.0


@pytest.mark.medium
def test_pitfall_15_a_pld_total_is_no_filter() -> None:
    """Each path costs (3, 1e-5) by PLD; a path chosen by the first answer costs δ = 1.9e-5.

    First a Gaussian, then either a second Gaussian, whose loss matters where the first was large,
    or a rare disaster, whose loss matters everywhere else. Plans that are added up never fit.
    """
    first, second = dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(1.9351)
    rare = dp.PoissonSampledDpEvent(9.99e-6, dp.GaussianDpEvent(0.12))
    for path in ([first, second], [first, rare]):
        ledger = PLDAccountant(value_discretization_interval=1e-3)
        assert ledger.compose(dp.ComposedDpEvent(path)).get_epsilon(1e-5) <= 3.001
    whole = [
        PLDAccountant(value_discretization_interval=1e-3).compose(use).get_epsilon(5e-6)
        for use in (first, second)
    ]
    assert sum(whole) > 3.5

    answer = np.linspace(-12.0, 12.0, 200_001)
    weight = norm.pdf(answer) / norm.pdf(answer).sum()
    left = 3.0 - (1 / 8 + answer / 2)  # ε = 3 less the loss of N(1/2, 1) against N(0, 1)
    disaster = 9.99e-6 + np.maximum(0.0, 1 - 9.99e-6 - np.exp(left))
    mu = 1 / 1.9351
    gaussian = norm.cdf(mu / 2 - left / mu) - np.exp(left) * norm.cdf(-mu / 2 - left / mu)
    assert float((weight * np.maximum(gaussian, disaster)).sum()) > 1.85e-5


def event_of(fields: Any) -> Any:
    """The event that a ledger's text names."""
    if isinstance(fields, list):
        return [event_of(field) for field in fields]
    if not isinstance(fields, dict):
        return fields
    kind = getattr(dp, fields.pop("class"))
    return kind(**{key: event_of(value) for key, value in fields.items()})


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_auditor_gets_the_event_back_from_its_text(event: object) -> None:
    assert event_of(json.loads(event_to_json(event))) == event


@pytest.mark.parametrize("thing", [None, 1.0, "GaussianDpEvent"])
def test_what_is_no_event_is_not_stored(thing: object) -> None:
    with pytest.raises(PrivacyError, match="a ledger stores serialisable events, received"):
        event_to_json(thing)
