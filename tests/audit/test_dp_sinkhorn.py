from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.audit.dp_sinkhorn import Canary, audit_one_run, audit_transcripts
from fedsink.audit.shared_sum import replies
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.errors import ConfigError
from fedsink.privacy import ClassSchedule, PrivacyPlan, ReproducibleKey

from .conftest import (
    RoundlessKey,
    WeakKey,
    clipped_to_twice_the_bound,
    not_sampled,
    twice_counted,
)

Plans = Callable[..., PrivacyPlan]

_CONFIDENCE = 0.95


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_the_canary_moves_every_release_by_exactly_the_sensitivity(plan: Plans, clip: str) -> None:
    canary = Canary(plan(clip, rounds=5))
    silent = WeakKey(0.0)
    requests = canary.requests()
    with_it, without = (
        torch.stack(replies(requests, shard, client_gradient, silent, 0)).flatten(1)
        for shard in (canary.present, canary.absent)
    )
    moved = with_it - without
    sensitivity = canary.plan.clip.sensitivity
    assert torch.allclose(moved.norm(dim=1), torch.tensor(sensitivity), rtol=1e-4)
    directions = torch.stack(list(canary.directions()))
    assert torch.allclose(moved / sensitivity, directions, atol=1e-4)
    # No two rounds alike, so that noise used in both of them does not hide the canary.
    assert (torch.pdist(directions) > 0.2).all()


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["record", pytest.param("batch", marks=pytest.mark.slow)])
def test_the_correct_mechanism_is_not_flagged_and_its_bound_is_not_empty(
    plan: Plans, clip: str
) -> None:
    threshold, trade_off = audit_transcripts(
        plan(clip), ReproducibleKey(1), trials=2000, confidence=_CONFIDENCE
    )
    for finding in (threshold, trade_off):
        assert not finding.violated
        assert finding.claim == plan(clip).epsilon()
        assert finding.claim <= 1
    assert trade_off.bound > 0.1


@pytest.mark.slow
def test_the_claims_are_those_of_the_rate_that_was_run(plan: Plans) -> None:
    audited = plan(rate=0.2)
    found = audit_transcripts(audited, ReproducibleKey(2), trials=300, confidence=_CONFIDENCE)
    assert [finding.method for finding in found] == ["threshold", "threshold", "Gaussian trade-off"]
    assert [finding.claim for finding in found] == [
        audited.epsilon(),
        *[replace(audited, rate=1.0).epsilon()] * 2,
    ]
    assert found[1].claim > 3 * found[0].claim
    assert not any(finding.violated for finding in found)


_FAULTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    # name: rounds, trials, fault
    "half the noise": (1, 4000, {"key": WeakKey(0.5)}),
    "forgotten in one round": (3, 200, {"key": WeakKey(0.0, only_round=2)}),
    "the same noise twice": (3, 200, {"key": RoundlessKey(3)}),
    "sensitivity doubled": (1, 4000, {"release": clipped_to_twice_the_bound}),
}


@pytest.mark.medium
@pytest.mark.quick("forgotten*", "the same*")
@pytest.mark.parametrize("clip", ["record", pytest.param("batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("rounds", "trials", "faulty"), _FAULTS.values(), ids=_FAULTS)
def test_planted_faults_are_caught_at_a_claim_of_one(
    plan: Plans, clip: str, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    audited = plan(clip, rounds=rounds)
    assert audited.epsilon() <= 1
    options = {"key": ReproducibleKey(4), **faulty}
    found = audit_transcripts(audited, trials=trials, confidence=_CONFIDENCE, **options)
    assert any(finding.violated for finding in found)


@pytest.mark.medium
@pytest.mark.parametrize(
    "faulty",
    [
        pytest.param({"key": WeakKey(0.0, only_round=2)}, id="forgotten in one round"),
        pytest.param({"key": RoundlessKey(3)}, id="the same noise twice"),
    ],
)
def test_gross_faults_need_no_assumption_on_the_mechanism(
    plan: Plans, faulty: dict[str, Any]
) -> None:
    threshold, _ = audit_transcripts(plan(), trials=200, confidence=_CONFIDENCE, **faulty)
    assert threshold.violated
    assert threshold.bound == threshold.resolution


@pytest.mark.slow
def test_a_record_that_counts_twice_is_caught(plan: Plans) -> None:
    found = audit_transcripts(
        plan(rounds=1),
        ReproducibleKey(5),
        trials=4000,
        confidence=_CONFIDENCE,
        release=twice_counted,
    )
    assert any(finding.violated for finding in found)


@pytest.mark.slow
def test_a_rate_that_is_claimed_and_not_applied_is_caught(plan: Plans) -> None:
    subsampled, *unsampled = audit_transcripts(
        plan(rate=0.05),
        ReproducibleKey(6),
        trials=600,
        confidence=_CONFIDENCE,
        release=not_sampled,
    )
    assert subsampled.claim <= 1
    assert subsampled.violated
    assert not any(finding.violated for finding in unsampled)


@pytest.mark.slow
def test_the_key_decides_the_outcome(plan: Plans) -> None:
    one, same, other = (
        audit_transcripts(plan(eps=8.0), ReproducibleKey(seed), trials=200, confidence=_CONFIDENCE)
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_what_cannot_be_audited_is_refused(plan: Plans) -> None:
    key = ReproducibleKey(0)
    scheduled = replace(plan(), schedule=ClassSchedule(3))
    with pytest.raises(ConfigError, match="joint schedule"):
        audit_transcripts(scheduled, key, trials=100, confidence=_CONFIDENCE)
    with pytest.raises(ConfigError, match="at least 8 trials, received 7"):
        audit_transcripts(plan(), key, trials=7, confidence=_CONFIDENCE)


def _one_run(plan: PrivacyPlan, key: Any = None, canaries: int = 1000, **options: Any) -> Any:
    key = key or ReproducibleKey(0)
    return audit_one_run(plan, key, canaries=canaries, confidence=0.95, **options)


@pytest.mark.medium
@pytest.mark.quick("*batch")
@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_one_run_of_the_correct_mechanism_is_not_flagged(
    plan: Plans, clip: str, rate: float
) -> None:
    found = [_one_run(plan(clip, rate=rate), ReproducibleKey(seed)) for seed in range(5)]
    assert not any(finding.violated for finding in found)
    assert {finding.claim for finding in found} == {plan(clip, rate=rate).epsilon()}


@pytest.mark.medium
def test_a_correct_run_of_weak_privacy_has_a_bound_that_says_so(plan: Plans) -> None:
    finding = _one_run(plan(eps=8.0))
    assert 1.5 < finding.bound < 8


@pytest.mark.medium
def test_its_resolution_is_that_of_the_number_of_canaries(plan: Plans) -> None:
    assert _one_run(plan()).resolution == pytest.approx(5.78, abs=0.005)
    assert _one_run(plan(eps=8.0)).unresolved
    assert _one_run(plan(), canaries=50).resolution < 3


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(WeakKey(0.0, only_round=2), id="forgotten in one round"),
        pytest.param(RoundlessKey(3), id="the same noise twice"),
        pytest.param(WeakKey(0.05), id="a twentieth of the noise"),
    ],
)
def test_gross_faults_are_caught_in_one_run_at_a_claim_of_one(plan: Plans, key: Any) -> None:
    finding = _one_run(plan(), key)
    assert finding.claim <= 1
    assert finding.violated


@pytest.mark.medium
def test_the_coins_and_the_noise_come_from_the_key(plan: Plans) -> None:
    methods = [_one_run(plan(), ReproducibleKey(seed)).method for seed in (1, 1, 2)]
    assert methods[0] == methods[1] != methods[2]


def test_what_cannot_be_audited_in_one_run_is_refused(plan: Plans) -> None:
    with pytest.raises(ConfigError, match="joint schedule"):
        _one_run(replace(plan(), schedule=ClassSchedule(3)))
    with pytest.raises(ConfigError, match="at least 2 canaries, received 1"):
        _one_run(plan(), canaries=1)
