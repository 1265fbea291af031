from __future__ import annotations

import json

from fedsink.privacy import BatchClip, ClassSchedule, PrivacyPlan, UnprotectedPlan
from fedsink.strategies.central.statement import central_statement
from fedsink.strategies.central.unprotected import unprotected_statement


def test_the_statement_promises_nothing_and_is_json() -> None:
    plan = UnprotectedPlan(0.1, 100, "batch", ClassSchedule(10))
    stated = json.loads(json.dumps(unprotected_statement(plan, 3), allow_nan=False))
    assert (stated["epsilon"], stated["delta"]) == (None, None)
    assert [(c["client"], c["epsilon"]) for c in stated["clients"]] == [(k, None) for k in range(3)]
    assert stated["protected"] == "Nothing."
    assert stated["not_protected"].startswith("Every record")
    assert (stated["clip"], stated["noise"], stated["noise_std"]) == ("none", "none", 0.0)
    assert "ε = ∞" in stated["mechanism"]


def test_it_has_the_keys_of_a_statement_that_promises_something() -> None:
    protecting = PrivacyPlan(0.1, 2.0, 100, BatchClip(0.5), ClassSchedule(10), 1e-5)
    plan = UnprotectedPlan(0.1, 100, "batch", ClassSchedule(10))
    assert set(unprotected_statement(plan, 3)) == set(central_statement(protecting, 3, "secret"))
