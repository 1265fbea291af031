from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.audit.dp_sinkhorn import Canary, audit_one_run, audit_transcripts
from fedsink.audit.shared_sum import SharedSum
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import PrivacyPlan, ReproducibleKey
from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.protocol.dp_sinkhorn import GradientRequest

from .conftest import RoundlessKey, Streams, WeakKey, clipped_to_twice_the_bound

Plans = Callable[..., PrivacyPlan]


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_the_canary_moves_every_sum_by_exactly_the_sensitivity(plan: Plans, clip: str) -> None:
    canary, silent = Canary(plan(clip, rounds=5), SharedSum(4, 1)), WeakKey(0.0)
    with_it, without = (
        torch.stack(
            canary.cohort.seen(canary.requests(), shard, client_gradient, silent, 7)
        ).flatten(1)
        for shard in (canary.present, canary.absent)
    )
    sensitivity = torch.tensor(canary.plan.clip.sensitivity, dtype=torch.float64)
    assert torch.allclose((with_it - without).norm(dim=1), sensitivity, rtol=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize(("clients", "colluders"), [(1, 0), (4, 0), (4, 1), (4, 3)])
def test_the_noise_and_the_claim_are_those_of_the_shares_that_nobody_knows(
    plan: Plans, clients: int, colluders: int
) -> None:
    cohort, rounds = SharedSum(clients, colluders), 500
    canary = Canary(replace(plan(), rounds=rounds), cohort)
    requests = canary.requests()
    seen = torch.stack(cohort.seen(requests, canary.absent, client_gradient, ReproducibleKey(1), 0))
    left = math.sqrt((clients - colluders) / clients)
    # 1,000 values: the standard deviation of their own is 2.2 %.
    assert float(seen.double().std()) == pytest.approx(left * canary.plan.noise_std, rel=0.12)
    # Nothing was sampled away, so the run is one Gaussian: an oracle without the accountant.
    multiplier = left * canary.plan.noise_multiplier / math.sqrt(rounds)
    claim = cohort.epsilon(requests[0])
    assert gaussian_delta(multiplier, claim) == pytest.approx(canary.plan.delta, rel=0.01)


def test_a_cohort_of_colluders_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"colluders=4 of clients=4 leave nobody .* at most 3"):
        SharedSum(4, 4)


@pytest.mark.medium
@pytest.mark.quick("*3-1")
@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("clients", [3, 6])
def test_the_sum_of_the_correct_mechanism_is_not_flagged(
    plan: Plans, clients: int, colluders: int
) -> None:
    options = {"confidence": 0.95, "cohort": SharedSum(clients, colluders)}
    found = audit_transcripts(plan(rate=0.2), ReproducibleKey(1), trials=200, **options)
    found.append(audit_one_run(plan(rate=0.2), ReproducibleKey(1), canaries=200, **options))
    assert not any(finding.violated for finding in found)
    assert all(f"sum of {clients}" in finding.audited for finding in found)
    assert all(("1 collude" in finding.audited) == bool(colluders) for finding in found)


def shared_by_too_many(request: GradientRequest, shard: Shard, stream: Streams) -> Tensor:
    """The noise is divided by four times as many as add it up."""
    return client_gradient(replace(request, share=4 * request.share), shard, stream)


def no_noise_at_the_canary(request: GradientRequest, shard: Shard, stream: Streams) -> Tensor:
    """Clients without records add noise; the others rely on them."""
    key = WeakKey(0.0) if len(shard) else WeakKey(1.0)
    return client_gradient(request, shard, lambda purpose: key.stream(purpose, client=0, round=0))


_FAULTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    # name: rounds, trials, fault
    "half the noise": (1, 4000, {"key": WeakKey(0.5)}),
    "shared by too many": (1, 4000, {"release": shared_by_too_many}),
    "sensitivity doubled": (1, 4000, {"release": clipped_to_twice_the_bound}),
    "forgotten in one round": (3, 200, {"key": WeakKey(0.0, only_round=2)}),
    "the same noise twice": (3, 200, {"key": RoundlessKey(3)}),
    "no noise of its own": (3, 200, {"release": no_noise_at_the_canary}),
}


@pytest.mark.medium
@pytest.mark.quick("forgotten*", "the same*")
@pytest.mark.parametrize(("rounds", "trials", "faulty"), _FAULTS.values(), ids=_FAULTS)
def test_faults_of_shared_noise_are_caught_at_a_claim_of_one(
    plan: Plans, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    options = {"key": ReproducibleKey(4), "cohort": SharedSum(3), **faulty}
    found = audit_transcripts(plan(rounds=rounds), trials=trials, confidence=0.95, **options)
    assert found[0].claim <= 1 + 1e-6
    assert any(finding.violated for finding in found)


@pytest.mark.slow
def test_noise_that_colluders_know_does_not_count(plan: Plans) -> None:
    """The claim of all shares would be refuted where three of four are known."""
    audited = plan(rounds=1)
    options = {"trials": 3000, "confidence": 0.95, "cohort": SharedSum(4, 3)}
    _, trade_off = audit_transcripts(audited, ReproducibleKey(5), **options)
    assert audited.epsilon() < trade_off.bound <= trade_off.claim
