from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsink.audit.gs_wgan import CriticCanary, audit_critics, transcripts
from fedsink.clients.answer import Task
from fedsink.clients.gs_wgan import critic_gradients
from fedsink.clients.pool import Pool
from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import (
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    ReproducibleKey,
    TurnSchedule,
)
from fedsink.privacy.clips.base import shrunk
from fedsink.protocol.gs_wgan import CriticRequest

from .conftest import RoundlessKey, WeakKey

_CONFIDENCE = 0.95
_ADJACENCIES = ["add-remove", "replace-one", "user", "client"]


def plan(critics: int = 1, **change: Any) -> PrivacyPlan:
    """A plan of ε ≤ 1."""
    options = {"rate": 1.0, "eps": 1.0, "rounds": 2, "delta": 1e-5, **change}
    return PrivacyPlan.solve(clip=CriticClip(0.1, critics), schedule=JointSchedule(), **options)


def audit(audited: PrivacyPlan, critics: int = 1, **options: Any) -> Any:
    chosen = {"key": ReproducibleKey(1), **options}
    return audit_critics(audited, critics=critics, confidence=_CONFIDENCE, **chosen)


class RowClip(CriticClip):
    """Clips each row by itself, with noise for one row, as published."""

    def total(self, gradients: Tensor) -> Tensor:
        rows = shrunk(gradients.flatten(0, -2), self.bound)
        return rows.reshape(gradients.shape).sum(1)


class LooseClip(CriticClip):
    """Lets 2C of a critic through with the noise for C."""

    def total(self, gradients: Tensor) -> Tensor:
        return CriticClip(2.0 * self.bound, self.critics).total(gradients)


@cache
def _clipped_by(kind: type[CriticClip], honest: PrivacyPlan) -> PrivacyPlan:
    faulty = replace(honest, clip=kind(honest.clip.bound, 1))
    assert faulty.noise_std == honest.noise_std
    return faulty


def rows_clipped(
    request: CriticRequest, tasks: Sequence[Task], pool: Pool, clients: slice
) -> Tensor:
    return critic_gradients(
        replace(request, plan=_clipped_by(RowClip, request.plan)), tasks, pool, clients
    )


def clipped_to_twice_the_bound(
    request: CriticRequest, tasks: Sequence[Task], pool: Pool, clients: slice
) -> Tensor:
    return critic_gradients(
        replace(request, plan=_clipped_by(LooseClip, request.plan)), tasks, pool, clients
    )


def dealt_to_every_critic(
    request: CriticRequest, tasks: Sequence[Task], pool: Pool, clients: slice
) -> Tensor:
    """A record has a line for each critic."""
    critics = request.critics.training.critics
    shards = [
        Shard(*(values.repeat_interleave(critics, 0) for values in (shard.images, shard.labels)))
        for shard in pool.shards
    ]
    return critic_gradients(request, tasks, Pool(shards), clients)


@pytest.mark.quick("*-3")
@pytest.mark.parametrize("critics", [1, 3])
@pytest.mark.parametrize("adjacency", _ADJACENCIES)
def test_the_canary_moves_every_release_by_exactly_the_sensitivity(
    adjacency: str, critics: int
) -> None:
    canary = CriticCanary(plan(critics, rounds=3, adjacency=adjacency), critics)
    with_it, without = (
        transcripts(canary, shard, critic_gradients, WeakKey(0.0), range(40))
        for shard in (canary.present, canary.absent)
    )
    difference = canary.difference
    assert np.allclose(with_it - without, difference.flatten(), atol=1e-5)
    # Under the client adjacency all critics move, and σ is M times what a record needs.
    moved = canary.plan.sensitivity * (critics if adjacency == "client" else 1)
    assert torch.allclose(difference.norm(dim=1), torch.tensor(moved, dtype=torch.float64))
    mu = moved * 3**0.5 / canary.plan.noise_std
    assert mu == pytest.approx(plan(rounds=1).noise_multiplier ** -1, rel=1e-3)
    # No two rounds in a row alike, so that noise used in both of them does not hide the canary.
    assert float(difference[0] @ difference[1]) == float(difference[1] @ difference[2]) == 0.0


@pytest.mark.slow
def test_critics_that_are_asked_in_secret_are_not_flagged_and_a_pick_that_is_not_made_is() -> None:
    audited = replace(plan(4, eps=10.0, rounds=4), rate=0.25)
    assert audited.epsilon() < 6.0
    found = audit(audited, 4, trials=4000)
    assert [finding.method for finding in found] == ["threshold"] * 2
    assert not any(finding.violated for finding in found)

    def always(request: CriticRequest, *rest: Any) -> Tensor:
        return critic_gradients(replace(request, plan=replace(request.plan, rate=1.0)), *rest)

    assert any(finding.violated for finding in audit(audited, 4, trials=4000, release=always))


def test_what_is_added_to_or_removed_from_a_client_is_one_record() -> None:
    canary = CriticCanary(plan(3), 3)
    assert len(canary.present) == len(canary.absent) + 1
    assert torch.equal(canary.present.images[:-1], canary.absent.images)


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "critics"), [("add-remove", 1), ("client", 2)])
def test_the_correct_mechanism_is_not_flagged_and_its_bound_is_near_the_claim(
    adjacency: str, critics: int
) -> None:
    audited = plan(critics, adjacency=adjacency, eps=10.0, rounds=3)
    found = audit(audited, critics, trials=1000)
    assert [finding.method for finding in found] == ["threshold", "Gaussian trade-off"] * 2
    assert {finding.claim for finding in found} == {audited.epsilon()}
    assert not any(finding.violated for finding in found)
    assert found[1].bound > 7.0


@pytest.mark.slow
@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("adjacency", _ADJACENCIES)
def test_many_transcripts_prove_nearly_the_claim(adjacency: str, critics: int) -> None:
    for eps, proved in ((1.0, 0.55), (10.0, 9.0)):
        audited = plan(critics, adjacency=adjacency, eps=eps, rounds=4)
        found = audit(audited, critics, trials=8000)
        assert not any(finding.violated for finding in found)
        assert found[1].bound > proved


@pytest.mark.medium
@pytest.mark.quick("rows*", "forgotten*", "the same*")
@pytest.mark.parametrize(
    ("critics", "rounds", "trials", "faulty"),
    [
        pytest.param(1, 2, 1000, {"release": rows_clipped}, id="rows clipped one by one"),
        pytest.param(
            *(1, 1, 4000, {"key": WeakKey(0.5)}), id="half the noise", marks=pytest.mark.slow
        ),
        pytest.param(1, 3, 200, {"key": WeakKey(0.0, only_round=2)}, id="forgotten in one round"),
        pytest.param(1, 3, 300, {"key": RoundlessKey(3)}, id="the same noise twice"),
        pytest.param(
            *(1, 1, 4000, {"release": clipped_to_twice_the_bound}),
            id="sensitivity doubled",
            marks=pytest.mark.slow,
        ),
        pytest.param(2, 1, 4000, {"release": dealt_to_every_critic}, id="dealt to every critic"),
    ],
)
def test_planted_faults_are_caught_at_a_claim_of_one(
    critics: int, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    audited = plan(critics, rounds=rounds)
    assert audited.epsilon() <= 1
    found = audit(audited, critics, trials=trials, **faulty)
    assert any(finding.violated for finding in found)


@pytest.mark.medium
def test_a_row_clip_is_caught_at_the_papers_epsilon() -> None:
    """The noise is for ε = 10, and eight rows of one class move by 2C√8."""
    found = audit(plan(eps=10.0), trials=1000, release=rows_clipped)
    assert found[1].violated
    assert found[1].bound > 25


@pytest.mark.medium
@pytest.mark.parametrize(
    "faulty",
    [
        pytest.param({"key": WeakKey(0.0, only_round=2)}, id="forgotten in one round"),
        pytest.param({"key": RoundlessKey(3)}, id="the same noise twice"),
    ],
)
def test_gross_faults_need_no_assumption_on_the_mechanism(faulty: dict[str, Any]) -> None:
    threshold = audit(plan(), trials=300, **faulty)[2]
    assert threshold.method == "threshold"
    assert threshold.violated


@pytest.mark.slow
def test_the_key_decides_the_outcome() -> None:
    one, same, other = (audit(plan(eps=8.0), key=ReproducibleKey(s), trials=200) for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ConfigError, match="joint schedule"):
        audit(replace(plan(), schedule=TurnSchedule(2)), trials=40)
    with pytest.raises(ConfigError, match="at least 8 trials, received 7"):
        audit(plan(), trials=7)
