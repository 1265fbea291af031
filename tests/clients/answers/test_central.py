"""A central plan asks for all of a node's budget, under the budget's adjacency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedsink.clients.answers.central import central_charge
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
from fedsink.privacy.accounting.accountants import poisson_gaussian
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian

from ...support.requests import GRID

PLAN = PrivacyPlan(0.2, 2.0, 30, RecordClip(0.5), ClassSchedule(3), 1e-5)
SHARED = IntegerGaussian(PLAN, 2, GRID, 8)
FULL = replace(PLAN, capacity=30, nominal_records=60)


def test_a_central_charge_is_what_the_plan_states() -> None:
    charge = central_charge(PLAN)
    assert charge.event == poisson_gaussian(0.2, 2.0, 10)
    assert (charge.rounds, charge.uses, charge.delta) == (30, 10, 1e-5)
    assert (charge.adjacency, charge.epsilon()) == ("add-remove", PLAN.epsilon())


def test_an_overflow_is_charged_with_its_plan() -> None:
    assert FULL.overflow > 0
    assert central_charge(FULL).epsilon() == FULL.epsilon() > PLAN.epsilon()


def test_charges_of_different_plans_are_told_apart() -> None:
    changed = (PLAN, FULL, replace(PLAN, delta=1e-6), replace(PLAN, adjacency="replace-one"))
    charges = [*map(central_charge, changed), central_charge(PLAN, SHARED)]
    charges.append(central_charge(PLAN, SHARED, trusted=True))
    charges.append(central_charge(PLAN, replace(SHARED, parts=3)))
    coarser = replace(SHARED, fixed_point=replace(GRID, granularity=2.0**-10))
    charges.append(central_charge(PLAN, coarser))
    assert len({charge.plan_json for charge in charges}) == len(charges)


def test_the_divergence_of_integers_is_charged() -> None:
    """Very many shares on very coarse integers: the only setting where it can be seen at all."""
    plan = replace(PLAN, noise_multiplier=2.0**10)
    coarse = IntegerGaussian(plan, 10**23, FixedPoint(2.0**-6, 30, 64.0), 10**4)
    assert 1e-10 < coarse.divergence < 1e-9
    charged = central_charge(plan, coarse, trusted=True)
    assert charged.epsilon() - plan.epsilon() == pytest.approx(coarse.divergence, rel=1e-3)
