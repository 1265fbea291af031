from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedsink.privacy import (
    LOCAL_NOISE,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    RecordClip,
)
from fedsink.strategies.central.statement import central_statement, notice

_PLAN = PrivacyPlan(0.1, 2.0, 100, RecordClip(0.5), ClassSchedule(10), 1e-5)
_SHARED = NoiseShare("secure_aggregation")


def test_the_runs_epsilon_is_the_curators_and_that_of_a_reply_stands_beside_it() -> None:
    stated = central_statement(_PLAN, 100, "secret", share=_SHARED)
    assert stated["epsilon"] == _PLAN.epsilon()
    alone = replace(_PLAN, noise_multiplier=2.0 * (1 / 10) ** 0.5)
    assert stated["epsilon_without_aggregator"] == alone.epsilon() > 3 * stated["epsilon"]
    (cohort,) = stated["noise_share"]["cohorts"]
    assert (cohort["clients"], cohort["sharers"]) == (10, 10)
    assert cohort["noise_std"] == pytest.approx(stated["noise_std"] / 10**0.5)
    json.dumps(stated)


def test_missing_shares_are_priced() -> None:
    stated = central_statement(_PLAN, 100, "secret", share=_SHARED)
    missing = stated["noise_share"]["missing_shares"]
    assert [one["missing"] for one in missing] == [1, 4, 9]
    for one in missing:
        sigma = 2.0 * (1 - one["missing"] / 10) ** 0.5
        assert one["sigma"] == pytest.approx(sigma)
        left = replace(_PLAN, noise_multiplier=one["sigma"])
        assert one["epsilon"] == left.epsilon() > stated["epsilon"]
    assert missing[-1]["epsilon"] == stated["epsilon_without_aggregator"]


def test_tolerated_shares_are_not_priced_and_the_first_more_is() -> None:
    stated = central_statement(_PLAN, 100, "secret", share=NoiseShare("secure_aggregation", 4))
    assert stated["epsilon"] == _PLAN.epsilon()
    missing = stated["noise_share"]["missing_shares"]
    assert [one["missing"] for one in missing] == [5, 9]
    assert missing[0]["sigma"] == pytest.approx(2.0 * (5 / 6) ** 0.5)
    assert stated["noise_share"]["tolerate_dropouts"] == 4


def test_every_assumption_is_named_and_the_text_promises_no_more() -> None:
    stated = central_statement(_PLAN, 100, "secret", share=_SHARED)
    assumed = stated["noise_share"]["assumptions"]
    assert set(assumed) == {"aggregation", "collusion", "dropout", "quantisation"}
    assert "sum of a cohort's replies" in stated["protected"]
    assert "server included" not in stated["protected"]
    assert "their ε compose)" not in stated["not_protected"]
    assert "those of one cohort change one sum" in stated["not_protected"]


@pytest.mark.parametrize(("clients", "share"), [(100, LOCAL_NOISE), (10, _SHARED), (3, _SHARED)])
def test_where_every_client_adds_the_whole_noise_the_statement_is_the_local_one(
    clients: int, share: NoiseShare
) -> None:
    stated = central_statement(_PLAN, clients, "secret", share=share)
    assert stated == central_statement(_PLAN, clients, "secret")
    assert "server included" in stated["protected"]
    assert "their ε compose" in stated["not_protected"]


@pytest.mark.slow
def test_one_line_says_what_holds_for_whom() -> None:
    stated = central_statement(_PLAN, 105, "secret", share=_SHARED)
    alone, epsilon = stated["epsilon_without_aggregator"], stated["epsilon"]
    first = stated["noise_share"]["missing_shares"][0]
    line = notice(stated, _SHARED, 105)
    assert line is not None
    assert line.startswith(
        f"noise.share=secure_aggregation: ε = {epsilon:.3g} holds for sums of 10 or 11 replies; "
        f"ε = {first['epsilon']:.3g} with 1 missing; "
    )
    bare = stated["epsilon_unamplified"]
    assert f"ε = {alone:.3g} for a reply alone; ε = {bare:.4g} without amplification" in line


def test_one_line_says_where_nothing_is_gained() -> None:
    stated = central_statement(_PLAN, 10, "secret", share=_SHARED)
    line, local = notice(stated, _SHARED, 10), notice(stated, LOCAL_NOISE, 10)
    assert line is not None
    assert line.endswith(
        " noise.share=secure_aggregation changes nothing here: with clients=10 and "
        "tolerate_dropouts=0 every client adds the whole noise."
    )
    assert line.partition(" noise.share=")[0] == local
    plan = replace(_PLAN, schedule=JointSchedule())
    local = notice(central_statement(plan, 10, "secret"), LOCAL_NOISE, 10)
    assert local is not None
    assert "noise.share" not in local
