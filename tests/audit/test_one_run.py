from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsink.audit.one_run import audit_one_run
from fedsink.errors import ConfigError
from fedsink.privacy import ClassSchedule, PrivacyPlan, ReproducibleKey

from .conftest import RoundlessKey, WeakKey

Plans = Callable[..., PrivacyPlan]


def _audit(plan: PrivacyPlan, key: Any = None, canaries: int = 1000, **options: Any) -> Any:
    key = key or ReproducibleKey(0)
    return audit_one_run(plan, key, canaries=canaries, confidence=0.95, **options)


@pytest.mark.quick("*batch")
@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_the_correct_mechanism_is_not_flagged(plan: Plans, clip: str, rate: float) -> None:
    found = [_audit(plan(clip, rate=rate), ReproducibleKey(seed)) for seed in range(5)]
    assert not any(finding.violated for finding in found)
    assert {finding.claim for finding in found} == {plan(clip, rate=rate).epsilon()}


def test_a_correct_run_of_weak_privacy_has_a_bound_that_says_so(plan: Plans) -> None:
    finding = _audit(plan(eps=8.0))
    assert 1.5 < finding.bound < 8


def test_its_resolution_is_that_of_the_number_of_canaries(plan: Plans) -> None:
    assert _audit(plan()).resolution == pytest.approx(5.78, abs=0.005)
    assert _audit(plan(eps=8.0)).unresolved
    assert _audit(plan(), canaries=50).resolution < 3


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(WeakKey(0.0, only_round=2), id="forgotten in one round"),
        pytest.param(RoundlessKey(3), id="the same noise twice"),
        pytest.param(WeakKey(0.05), id="a twentieth of the noise"),
    ],
)
def test_gross_faults_are_caught_in_one_run_at_a_claim_of_one(plan: Plans, key: Any) -> None:
    finding = _audit(plan(), key)
    assert finding.claim <= 1
    assert finding.violated


def test_the_coins_and_the_noise_come_from_the_key(plan: Plans) -> None:
    methods = [_audit(plan(), ReproducibleKey(seed)).method for seed in (1, 1, 2)]
    assert methods[0] == methods[1] != methods[2]


def test_what_cannot_be_audited_is_refused(plan: Plans) -> None:
    with pytest.raises(ConfigError, match="joint schedule"):
        _audit(replace(plan(), schedule=ClassSchedule(3)))
    with pytest.raises(ConfigError, match="at least 2 canaries, received 1"):
        _audit(plan(), canaries=1)
