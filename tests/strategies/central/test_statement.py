from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedsink.privacy import (
    ADJACENCIES,
    LOCAL_NOISE,
    BatchClip,
    ClassSchedule,
    PrivacyPlan,
    RecordClip,
)
from fedsink.privacy.adjacency import describe
from fedsink.strategies.central.statement import central_statement, notice

_PLAN = PrivacyPlan(0.1, 2.0, 100, BatchClip(0.5), ClassSchedule(10), 1e-5)


@pytest.mark.parametrize("adjacency", sorted(set(ADJACENCIES) - {"user"}))
def test_epsilon_is_stated_with_unit_adjacency_and_accountant(adjacency: str) -> None:
    plan = replace(_PLAN, adjacency=adjacency)
    stated = central_statement(plan, 3, "secret")
    assert stated["epsilon"] == plan.epsilon("pld")
    assert (stated["adjacency"], stated["adjacency_name"]) == (describe(adjacency), adjacency)
    assert stated["unit"] == ("client" if adjacency == "client" else "record")
    assert (stated["accountant"], stated["accountant_library"]) == ("pld", "dp-accounting")
    assert [(c["client"], c["epsilon"]) for c in stated["clients"]] == [
        (k, stated["epsilon"]) for k in range(3)
    ]
    assert ("client as a whole" in stated["not_protected"]) == (adjacency != "client")
    assert ("Replacing one record" in stated["not_protected"]) == (adjacency == "add-remove")
    json.dumps(stated)


def test_whoever_starts_a_run_reads_what_is_left_without_amplification() -> None:
    stated = central_statement(_PLAN, 3, "secret")
    said = notice(stated, LOCAL_NOISE, 3)
    assert said is not None
    for key in ("epsilon", "epsilon_unamplified"):
        assert f"ε = {stated[key]:.4g}" in said
    hidden = replace(_PLAN, capacity=900, nominal_records=2000)
    said = notice(central_statement(hidden, 3, "secret"), LOCAL_NOISE, 3)
    assert said is not None
    assert "without amplification" not in said


def test_another_accountant_is_named_with_its_library() -> None:
    stated = central_statement(_PLAN, 1, "secret", "rdp-opacus")
    assert stated["epsilon"] == _PLAN.epsilon("rdp-opacus")
    assert stated["accountant_library"] == "Opacus"


def test_without_a_capacity_the_unamplified_epsilon_stands_beside_it() -> None:
    stated = central_statement(_PLAN, 1, "reproducible")
    assert stated["capacity"] is None
    assert stated["epsilon_unamplified"] == _PLAN.epsilon_unamplified() > stated["epsilon"]
    assert stated["sample_secrecy"].startswith("Not enforced")


def test_with_a_capacity_it_does_not_and_the_overflow_is_stated() -> None:
    plan = replace(_PLAN, clip=RecordClip(1.0), capacity=60, nominal_records=300)
    stated = central_statement(plan, 1, "secret")
    assert "epsilon_unamplified" not in stated
    assert (stated["capacity"], stated["nominal_records"]) == (60, 300)
    assert 0 < stated["delta_overflow"] == plan.overflow < 1e-5
    assert "fixed capacity of 60 records" in stated["sample_secrecy"]


@pytest.mark.parametrize("kind", ["reproducible", "secret", "secure", "node"])
def test_every_kind_of_noise_is_explained(kind: str) -> None:
    stated = central_statement(_PLAN, 1, kind)
    assert stated["noise"] == kind
    assert stated["noise_meaning"].endswith(".")
