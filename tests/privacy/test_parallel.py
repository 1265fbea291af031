from __future__ import annotations

from dataclasses import replace

import dp_accounting
import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    across_clients,
    one_person_at,
)

F2 = PrivacyPlan(0.2, 2.291, 4000, RecordClip(8.0), ClassSchedule(10), 1e-5)
MORE = replace(F2, rate=0.3)


def test_the_runs_epsilon_is_the_largest_of_the_clients():
    run = across_clients([F2, MORE, F2])
    assert run.epsilon == MORE.epsilon() > F2.epsilon()
    assert (run.delta, run.adjacency, run.unit, run.accountant) == (
        1e-5, "add-remove", "record", "pld",
    )  # fmt: skip
    assert run.adjacency_words == F2.adjacency_words
    assert across_clients([F2] * 100).epsilon == F2.epsilon()


@pytest.mark.parametrize(("clients", "eps"), [(1, 9.17), (2, 13.9), (3, 18.0), (10, 40.4)])
def test_a_person_at_several_clients_composes(clients, eps):
    assert one_person_at([F2] * clients).epsilon == pytest.approx(eps, abs=0.06)


def test_different_plans_are_composed_as_events():
    both = one_person_at([F2, MORE])
    assert max(F2.epsilon(), MORE.epsilon()) < both.epsilon < F2.epsilon() + MORE.epsilon()
    ledger = dp_accounting.pld.PLDAccountant().compose(F2.event).compose(MORE.event)
    assert both.epsilon == pytest.approx(ledger.get_epsilon(1e-5), rel=1e-6)
    by_rdp = one_person_at([F2, MORE], "rdp").epsilon
    assert both.epsilon < by_rdp < F2.epsilon("rdp") + MORE.epsilon("rdp")


@pytest.mark.slow
def test_composed_capacities_pay_for_all_their_overflows():
    tight = replace(F2, capacity=178, nominal_records=600)
    other = replace(MORE, capacity=250, nominal_records=600)
    assert 1e-6 < tight.overflow < 1e-5
    assert one_person_at([tight, other]).epsilon > one_person_at([F2, MORE]).epsilon
    with pytest.raises(PrivacyError, match="capacities overflow with a probability above δ"):
        one_person_at([replace(tight, capacity=170), other])


@pytest.mark.parametrize("combine", [across_clients, one_person_at])
def test_plans_of_different_adjacency_or_delta_are_refused(combine):
    other = replace(F2, adjacency="replace-one")
    with pytest.raises(PrivacyError, match="one adjacency only, received add-remove, replace-one"):
        combine([F2, other])
    with pytest.raises(PrivacyError, match="at one δ only, received 1e-06, 1e-05"):
        combine([F2, replace(F2, delta=1e-6)])
    with pytest.raises(PrivacyError, match="one adjacency only, received none"):
        combine([])


def test_replace_one_composes_equal_plans_alone():
    plan = PrivacyPlan(0.1, 2.0, 50, BatchClip(1.0), JointSchedule(), 1e-5, "replace-one")
    twice = replace(plan, rounds=100)
    assert one_person_at([plan, plan]).epsilon == twice.epsilon()
    with pytest.raises(PrivacyError, match="different plans are not composed under replace-one"):
        one_person_at([plan, twice])
