"""One audit for every answer: canaries, claims, planted faults, leaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient.answer import ParameterGradientAnswer
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsink.audit.plays import Play, audit, audit_one_run
from fedsink.clients.answers.base import Answer, Asked, Task
from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.answers.gs_wgan import GSWGANAnswer
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.privacy import (
    ClassSchedule,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RandomizedResponse,
    ReproducibleKey,
    local_mechanism,
)
from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.privacy.clips import clip_to_norm
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.gs_wgan import CriticRequest
from fedsink.protocol.packing import pack
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest
from fedsink.protocol.requests import pack_replies

from .conftest import RoundlessKey, WeakKey

Plans = Callable[..., PrivacyPlan]

_ADJACENCIES = ["add-remove", "replace-one", "user", "client"]
_DELTA = {"laplace": 0.0, "gaussian": 1e-5}


def of_critics(critics: int = 1, **change: Any) -> PrivacyPlan:
    options = {"rate": 1.0, "eps": 1.0, "rounds": 2, "delta": 1e-5, **change}
    return PrivacyPlan.solve(clip=CriticClip(0.1, critics), schedule=JointSchedule(), **options)


def local(mechanism: str, epsilon: float = 1.0) -> LocalPlan:
    interval = PointBall(local_mechanism(mechanism).norm, radius=1.0, size=1)
    return LocalPlan(mechanism, interval, epsilon, _DELTA[mechanism])


_NO_NOISE = WeakKey(0.0)


def moved_by(
    answer: type[Answer], plan: PrivacyPlan, key: Any = _NO_NOISE, **shared: int
) -> Tensor:
    """What the canary moves in each use, (T, n): without noise, or with the same noise."""
    [pair] = answer.canaries(plan)
    play = Play(answer, pair, **{"clients": 1, "colluders": 0, **shared})
    present, absent = (
        torch.from_numpy(play.seen(shard, key, 40, 3)) for shard in (pair.present, pair.absent)
    )
    moved = present - absent
    assert torch.allclose(moved, moved[:1].expand_as(moved), atol=1e-5)
    return moved[0].reshape(plan.rounds, -1)


@pytest.mark.parametrize("shared", [{}, {"clients": 4, "colluders": 1}], ids=["alone", "shared"])
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_a_record_moves_every_use_by_exactly_the_sensitivity(
    plan: Plans, clip: str, shared: dict[str, int]
) -> None:
    moved = moved_by(DPSinkhornAnswer, plan(clip, rounds=5), **shared)
    sensitivity = torch.tensor(plan(clip).sensitivity, dtype=torch.float64)
    assert torch.allclose(moved.norm(dim=1), sensitivity, rtol=1e-4)
    # No two rounds alike, so that noise used in both of them does not hide the canary.
    assert (torch.pdist(moved / sensitivity) > 0.2).all()


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_a_record_moves_the_gradient_of_weights_by_exactly_the_sensitivity(
    plan: Plans, clip: str
) -> None:
    moved = moved_by(ParameterGradientAnswer, plan(clip, rounds=3))
    sensitivity = torch.tensor(plan(clip).sensitivity, dtype=torch.float64)
    assert torch.allclose(moved.norm(dim=1), sensitivity, rtol=1e-4)
    assert (torch.pdist(moved / sensitivity) > 0.05).all()


@pytest.mark.medium
@pytest.mark.quick("*-3")
@pytest.mark.parametrize("critics", [1, 3])
@pytest.mark.parametrize("adjacency", _ADJACENCIES)
def test_a_canary_turns_its_critic_round_by_exactly_the_sensitivity(
    adjacency: str, critics: int
) -> None:
    audited = of_critics(critics, rounds=3, adjacency=adjacency)
    moved = moved_by(GSWGANAnswer, audited)
    # Under the client adjacency all critics move, and σ is M times what a record needs.
    reach = audited.sensitivity * (critics if adjacency == "client" else 1)
    assert torch.allclose(moved.norm(dim=1), torch.tensor(reach).double(), rtol=1e-4)
    mu = reach * 3**0.5 / audited.noise_std
    assert mu == pytest.approx(of_critics(rounds=1).noise_multiplier ** -1, rel=1e-3)
    assert all(float(one @ other) == 0.0 for one, other in pairwise(moved))


def test_what_is_added_to_or_removed_from_a_client_is_one_record() -> None:
    [pair] = GSWGANAnswer.canaries(of_critics(3))
    assert len(pair.present) == len(pair.absent) + 1
    assert torch.equal(pair.present.images[:-1], pair.absent.images)


@pytest.mark.parametrize("mechanism", _DELTA)
def test_records_of_the_local_mode_are_a_diameter_apart_or_differ_in_their_label(
    mechanism: str,
) -> None:
    line, beside, plane, label = PrivatizeOnceAnswer.canaries(local(mechanism))
    order = 1 if mechanism == "laplace" else 2
    for pair in (line, beside, plane):
        own = pair.requests[0].plan
        one, two = own.map(pair.absent.images), own.map(pair.present.images)
        distance = torch.linalg.vector_norm(one - two, ord=order, dim=1).amax()
        assert float(distance) == pytest.approx(own.map.sensitivity, rel=1e-5)
        assert own.total_epsilon == pytest.approx(1.0)
    assert torch.equal(label.present.images, label.absent.images)
    assert label.requests[0].plan.label_mechanism == RandomizedResponse(3, 0.99)
    assert label.requests[0].plan.total_epsilon == pytest.approx(1.0)


@pytest.mark.medium
@pytest.mark.parametrize(("clients", "colluders"), [(1, 0), (4, 0), (4, 1), (4, 3)])
def test_the_noise_and_the_claim_are_those_of_the_shares_that_nobody_knows(
    plan: Plans, clients: int, colluders: int
) -> None:
    audited = replace(plan(), rounds=500)
    [pair] = DPSinkhornAnswer.canaries(audited)
    play = Play(DPSinkhornAnswer, pair, clients, colluders)
    seen = play.seen(pair.absent, ReproducibleKey(1), 0, 1)
    left = math.sqrt((clients - colluders) / clients)
    # 1,000 values: the standard deviation of their own is 2.2 %.
    assert float(seen.std()) == pytest.approx(left * audited.noise_std, rel=0.12)
    # Nothing was sampled away, so the run is one Gaussian: an oracle without the accountant.
    multiplier = left * audited.noise_multiplier / math.sqrt(500)
    assert gaussian_delta(multiplier, play.claim) == pytest.approx(audited.delta, rel=0.01)


@pytest.mark.medium
def test_the_claims_are_the_charges_of_the_rates_that_were_run(plan: Plans) -> None:
    audited = plan(rate=0.2)
    found, leaks = audit(DPSinkhornAnswer, audited, ReproducibleKey(2), trials=300)
    assert leaks == ()
    assert [finding.method for finding in found] == ["threshold", "threshold", "Gaussian trade-off"]
    assert [finding.claim for finding in found] == [
        audited.epsilon(),
        *[replace(audited, rate=1.0).epsilon()] * 2,
    ]
    assert found[1].claim > 3 * found[0].claim
    assert not any(finding.violated for finding in found)


@pytest.mark.parametrize(
    ("canaries", "rate", "bounds"), [(None, 1.0, 2), (None, 0.2, 3), (50, 0.2, 4)]
)
def test_all_bounds_of_an_audit_together_have_its_confidence(
    plan: Plans, canaries: int | None, rate: float, bounds: int
) -> None:
    found, _ = audit(
        DPSinkhornAnswer,
        plan(rate=rate),
        ReproducibleKey(1),
        trials=40,
        confidence=0.9,
        canaries=canaries,
    )
    assert [finding.confidence for finding in found] == [pytest.approx(1.0 - 0.1 / bounds)] * bounds


@pytest.mark.medium
@pytest.mark.quick("*-record")
@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("answer", [DPSinkhornAnswer, ParameterGradientAnswer])
def test_the_correct_mechanism_is_not_flagged_and_its_bound_is_near_the_claim(
    plan: Plans, answer: type[Answer], clip: str
) -> None:
    audited = plan(clip, eps=10.0)
    [threshold, trade_off], leaks = audit(answer, audited, ReproducibleKey(1), trials=400)
    assert leaks == ()
    assert not threshold.violated
    assert 5.0 < trade_off.bound <= trade_off.claim == audited.epsilon()


@pytest.mark.slow
@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("adjacency", _ADJACENCIES)
def test_many_plays_of_critics_prove_nearly_the_claim(adjacency: str, critics: int) -> None:
    for eps, proved in ((1.0, 0.55), (10.0, 9.0)):
        audited = of_critics(critics, adjacency=adjacency, eps=eps, rounds=4)
        found, _ = audit(GSWGANAnswer, audited, ReproducibleKey(1), trials=8000)
        assert not any(finding.violated for finding in found)
        assert found[1].bound > proved


@pytest.mark.medium
@pytest.mark.quick("*3-1")
@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("clients", [3, 6])
def test_the_sum_of_the_correct_mechanism_is_not_flagged(
    plan: Plans, clients: int, colluders: int
) -> None:
    shared = {"clients": clients, "colluders": colluders}
    found, leaks = audit(
        DPSinkhornAnswer, plan(rate=0.2), ReproducibleKey(1), trials=200, canaries=200, **shared
    )
    assert leaks == ()
    assert not any(finding.violated for finding in found)
    assert all(f"sum of {clients}" in finding.audited for finding in found)
    assert all(("1 collude" in finding.audited) == bool(colluders) for finding in found)


class Faulty(DPSinkhornAnswer):
    """Answers another request than it is charged for."""

    def __init__(self, requests: Sequence[GradientRequest]) -> None:
        super().__init__(requests)
        self.requests = [self.changed(request) for request in requests]

    def changed(self, request: GradientRequest) -> GradientRequest:
        return request


@cache
def _loose(plan: PrivacyPlan) -> PrivacyPlan:
    loose = replace(
        plan,
        clip=type(plan.clip)(2.0 * plan.clip.bound),
        noise_multiplier=plan.noise_multiplier / 2.0,
    )
    assert loose.noise_std == plan.noise_std
    return loose


class ClippedToTwiceTheBound(Faulty):
    """The clip lets 2Δ through, and the noise is still that of Δ."""

    def changed(self, request: GradientRequest) -> GradientRequest:
        return replace(request, plan=_loose(request.plan))


class NotSampled(Faulty):
    """Every record takes part in every round, whatever the rate."""

    def changed(self, request: GradientRequest) -> GradientRequest:
        return replace(request, plan=replace(request.plan, rate=1.0))


class SharedByTooMany(Faulty):
    """The noise is divided by four times as many as add it up."""

    def changed(self, request: GradientRequest) -> GradientRequest:
        return replace(request, share=4 * request.share)


class TwiceCounted(DPSinkhornAnswer):
    """Every record is in the shard twice; only at a node, and not in a cohort."""

    def compute(self, task: Task) -> list[Tensor]:
        images, labels = (torch.cat([part] * 2) for part in (task.shard.images, task.shard.labels))
        return super().compute(task._replace(shard=Shard(images, labels)))


def test_what_a_node_computes_is_played_where_a_cohort_computes_something_else(
    plan: Plans,
) -> None:
    moved = moved_by(TwiceCounted, plan(), ReproducibleKey(1))
    assert torch.allclose(moved.norm(dim=1), torch.tensor(2.0).double(), rtol=1e-4)


class NoNoiseOfItsOwn(DPSinkhornAnswer):
    """Clients without records add noise; the others rely on them."""

    def compute(self, task: Task) -> list[Tensor]:
        return super().compute(task._replace(key=WeakKey(0.0)) if len(task.shard) else task)


_FAULTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    # name: rounds, trials, fault
    "half the noise": (1, 4000, {"key": WeakKey(0.5)}),
    "forgotten in one round": (3, 200, {"key": WeakKey(0.0, only_round=2)}),
    "the same noise twice": (3, 200, {"key": RoundlessKey(3)}),
    "sensitivity doubled": (1, 4000, {"answer": ClippedToTwiceTheBound}),
    "counted twice": (1, 4000, {"answer": TwiceCounted}),
}
_FAULTS_OF_SUMS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "shared by too many": (1, 2000, {"answer": SharedByTooMany}),
}


def is_caught(plan: PrivacyPlan, trials: int, **faulty: Any) -> bool:
    """True if a fault is found in an answer whose plan claims at most 1."""
    assert plan.epsilon() <= 1
    found, _ = audit(plan=plan, trials=trials, **faulty)
    return any(finding.violated for finding in found)


@pytest.mark.medium
@pytest.mark.quick("forgotten*", "the same*")
@pytest.mark.parametrize(
    ("clip", "rounds", "trials", "faulty"),
    [
        pytest.param(clip, *fault, id=f"{name}-{clip}", marks=marks)
        for clip, marks in (("record", ()), ("batch", pytest.mark.slow))
        for name, fault in _FAULTS.items()
        if (clip, fault[2].get("answer")) != ("batch", TwiceCounted)  # a batch is clipped as one
    ],
)
def test_planted_faults_are_caught_at_a_claim_of_one(
    plan: Plans, clip: str, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    audited = plan(clip, rounds=rounds)
    faulty = {"answer": DPSinkhornAnswer, "key": ReproducibleKey(4), **faulty}
    assert is_caught(audited, trials, **faulty)


@pytest.mark.medium
@pytest.mark.quick("forgotten*", "the same*")
@pytest.mark.parametrize(
    ("rounds", "trials", "faulty"),
    (_FAULTS | _FAULTS_OF_SUMS).values(),
    ids=_FAULTS | _FAULTS_OF_SUMS,
)
def test_faults_of_shared_noise_are_caught_at_a_claim_of_one(
    plan: Plans, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    options = {"answer": DPSinkhornAnswer, "key": ReproducibleKey(4), **faulty}
    found, _ = audit(plan=plan(rounds=rounds), trials=trials, clients=3, **options)
    assert found[0].claim <= 1 + 1e-6
    assert any(finding.violated for finding in found)


@pytest.mark.medium
def test_a_client_that_leaves_the_noise_to_others_is_caught(plan: Plans) -> None:
    audited, shared = plan(eps=0.5, rounds=3), {"clients": 3, "colluders": 2}
    found, _ = audit(NoNoiseOfItsOwn, audited, ReproducibleKey(4), trials=200, **shared)
    assert found[0].claim <= 1
    assert any(finding.violated for finding in found)


@pytest.mark.slow
def test_noise_that_colluders_know_does_not_count(plan: Plans) -> None:
    """The claim of all shares would be refuted where three of four are known."""
    audited = plan(rounds=1)
    shared = {"clients": 4, "colluders": 3}
    [_, trade_off], _ = audit(DPSinkhornAnswer, audited, ReproducibleKey(5), trials=3000, **shared)
    assert audited.epsilon() < trade_off.bound <= trade_off.claim


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
    for answer, audited in ((DPSinkhornAnswer, plan()), (GSWGANAnswer, of_critics())):
        threshold = audit(answer, audited, trials=400, **faulty).findings[0]
        assert threshold.method == "threshold"
        assert threshold.violated
        assert threshold.bound == threshold.resolution


@pytest.mark.slow
def test_a_rate_that_is_claimed_and_not_applied_is_caught(plan: Plans) -> None:
    [subsampled, *unsampled], _ = audit(NotSampled, plan(rate=0.05), ReproducibleKey(6), trials=600)
    assert subsampled.claim <= 1
    assert subsampled.violated
    assert not any(finding.violated for finding in unsampled)


class FaultyCritics(GSWGANAnswer):
    def __init__(self, requests: Sequence[CriticRequest]) -> None:
        super().__init__(requests)
        self.request = self.changed(self.request)

    def changed(self, request: CriticRequest) -> CriticRequest:
        return request


class RowClip(CriticClip):
    """Clips each row by itself, with noise for one row, as published."""

    __module__ = CriticClip.__module__  # a defect of fedsink's own: else a program may not

    def total(self, gradients: Tensor) -> Tensor:
        rows = clip_to_norm(gradients.flatten(0, -2), self.bound)
        return rows.reshape(gradients.shape).sum(1)


class LooseClip(CriticClip):
    """Lets 2C of a critic through with the noise for C."""

    __module__ = CriticClip.__module__

    def total(self, gradients: Tensor) -> Tensor:
        return CriticClip(2.0 * self.bound, self.critics).total(gradients)


@cache
def _clipped_by(kind: type[CriticClip], honest: PrivacyPlan) -> PrivacyPlan:
    faulty = replace(honest, clip=kind(honest.clip.bound, 1))
    assert faulty.noise_std == honest.noise_std
    return faulty


class RowsClipped(FaultyCritics):
    def changed(self, request: CriticRequest) -> CriticRequest:
        return replace(request, plan=_clipped_by(RowClip, request.plan))


class CriticsClippedToTwiceTheBound(FaultyCritics):
    def changed(self, request: CriticRequest) -> CriticRequest:
        return replace(request, plan=_clipped_by(LooseClip, request.plan))


class EveryCriticAsked(FaultyCritics):
    def changed(self, request: CriticRequest) -> CriticRequest:
        return replace(request, plan=replace(request.plan, rate=1.0))


class DealtToEveryCritic(GSWGANAnswer):
    """A record has a line for each critic."""

    def compute(self, task: Task) -> list[Tensor]:
        shard = self._each_to_every_critic(task.shard)
        return super().compute(task._replace(shard=shard))

    @classmethod
    def compute_each(cls, asked: Sequence[Asked], pool: Pool, *, summed: bool) -> Tensor:
        [some] = asked
        shards = map(some.answer._each_to_every_critic, map(pool.shard, range(len(pool))))
        return super().compute_each(asked, Pool([*shards]), summed=summed)

    def _each_to_every_critic(self, shard: Shard) -> Shard:
        critics = self.request.critics.training.critics
        return Shard(*(part.repeat_interleave(critics, 0) for part in (shard.images, shard.labels)))


@pytest.mark.medium
@pytest.mark.quick("forgotten*", "the same*")
@pytest.mark.parametrize(
    ("critics", "rounds", "trials", "faulty"),
    [
        pytest.param(1, 2, 1000, {"answer": RowsClipped}, id="rows clipped one by one"),
        pytest.param(1, 1, 4000, {"key": WeakKey(0.5)}, id="half the noise"),
        pytest.param(
            *(1, 3, 200, {"key": WeakKey(0.0, only_round=2)}), id="forgotten in one round"
        ),
        pytest.param(1, 3, 400, {"key": RoundlessKey(3)}, id="the same noise twice"),
        pytest.param(
            *(1, 1, 4000, {"answer": CriticsClippedToTwiceTheBound}),
            id="sensitivity doubled",
        ),
        pytest.param(
            *(2, 1, 8000, {"answer": DealtToEveryCritic}),
            id="dealt to every critic",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_planted_faults_of_critics_are_caught(
    critics: int, rounds: int, trials: int, faulty: dict[str, Any]
) -> None:
    audited = of_critics(critics, rounds=rounds)
    faulty = {"answer": GSWGANAnswer, "key": ReproducibleKey(1), **faulty}
    assert is_caught(audited, trials, **faulty)


@pytest.mark.medium
def test_a_row_clip_is_caught_at_the_papers_epsilon() -> None:
    """The noise is for ε = 10, and eight rows of one class move by 2C√8."""
    found, _ = audit(RowsClipped, of_critics(eps=10.0), ReproducibleKey(1), trials=1000)
    assert found[1].violated
    assert found[1].bound > 25


@pytest.mark.slow
def test_critics_that_are_asked_in_secret_are_not_flagged_and_a_pick_that_is_not_made_is() -> None:
    audited = replace(of_critics(4, eps=10.0, rounds=4), rate=0.25)
    assert audited.epsilon() < 6.0
    found, _ = audit(GSWGANAnswer, audited, ReproducibleKey(1), trials=4000)
    assert [finding.method for finding in found] == ["threshold", "threshold", "Gaussian trade-off"]
    assert not any(finding.violated for finding in found)
    found, _ = audit(EveryCriticAsked, audited, ReproducibleKey(1), trials=4000)
    assert found[0].violated


class DoubledRange(PrivatizeOnceAnswer):
    """The map lets through twice the diameter that the noise was made for."""

    def __init__(self, requests: Sequence[PrivatizeRequest]) -> None:
        super().__init__(requests)
        self.honest, self.factor = self.plan, 2.0

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        try:
            self.plan = _wide(self.honest, self.factor)
            images = self.factor * task.shard.images
            return super().compute(task._replace(shard=Shard(images, task.shard.labels)))
        finally:
            self.plan = self.honest


class NoProjection(DoubledRange):
    """The records are noised as they are."""

    def __init__(self, requests: Sequence[PrivatizeRequest]) -> None:
        super().__init__(requests)
        self.factor = 1.0

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        self.plan = _wide(self.honest, 1e3)
        try:
            return PrivatizeOnceAnswer.compute(self, task)
        finally:
            self.plan = self.honest


@cache
def _wide(plan: LocalPlan, radius: float) -> LocalPlan:
    """The plan with another map, and the noise that it had."""
    wide = replace(plan, map=PointBall(plan.map.norm, radius, plan.map.dimension))
    object.__setattr__(wide.image_mechanism, "scale", plan.image_mechanism.scale)
    return wide


class OwnLabels(PrivatizeOnceAnswer):
    """Labels leave as they are."""

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        return super().compute(task)[0], task.shard.labels


class HalfRandomizedLabels(PrivatizeOnceAnswer):
    """Labels are kept with the probability at which twice the ε would keep them."""

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        values, labels = super().compute(task)
        if self.plan.label_mechanism is not None:
            twice = RandomizedResponse(self.plan.classes, 2 * self.plan.label_mechanism.epsilon)
            labels = twice.privatize(task.shard.labels, task.stream("label", 0))
        return values, labels


class SameNoiseForEveryRecord(PrivatizeOnceAnswer):
    """Each record is privatized by itself, with a stream that was used before."""

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        shards = [
            Shard(task.shard.images[i : i + 1], task.shard.labels[i : i + 1])
            for i in range(len(task.shard))
        ]
        values, labels = zip(
            *(super(SameNoiseForEveryRecord, self).compute(task._replace(shard=s)) for s in shards),
            strict=True,
        )
        return torch.cat(values), torch.cat(labels)


@pytest.mark.medium
@pytest.mark.quick("gaussian")
@pytest.mark.parametrize("mechanism", _DELTA)
def test_the_local_mode_is_not_flagged_and_its_bound_is_not_empty(mechanism: str) -> None:
    found, leaks = audit(PrivatizeOnceAnswer, local(mechanism), ReproducibleKey(0), trials=2000)
    assert leaks == ()
    assert not any(finding.violated for finding in found)
    assert [finding.claim for finding in found] == pytest.approx([1.0] * len(found))
    assert max(finding.bound for finding in found) > 0.3


@pytest.mark.medium
@pytest.mark.quick("*labels*", "no projection-gaussian")
@pytest.mark.parametrize("mechanism", _DELTA)
@pytest.mark.parametrize(
    ("of", "trials", "faulty"),
    [
        pytest.param("", 4000, {"key": WeakKey(0.5)}, id="half the noise"),
        pytest.param("", 200, {"key": WeakKey(0.0)}, id="no noise"),
        pytest.param("", 4000, {"answer": DoubledRange}, id="sensitivity doubled"),
        pytest.param(
            *("two records", 200, {"answer": SameNoiseForEveryRecord}), id="the same noise twice"
        ),
        pytest.param(
            *("one record beyond the ball", 500, {"answer": NoProjection}), id="no projection"
        ),
        pytest.param("one label", 500, {"answer": OwnLabels}, id="own labels"),
        pytest.param("one label", 4000, {"answer": HalfRandomizedLabels}, id="half randomized"),
    ],
)
def test_planted_faults_of_the_local_mode_are_caught_by_the_pair_that_shows_them(
    mechanism: str, of: str, trials: int, faulty: dict[str, Any]
) -> None:
    options = {"answer": PrivatizeOnceAnswer, "key": ReproducibleKey(2), **faulty}
    found, _ = audit(plan=local(mechanism), trials=trials, **options)
    caught = {finding.audited.split("plays of ")[1] for finding in found if finding.violated}
    assert caught == {of} if of else caught


@pytest.mark.medium
def test_an_epsilon_beyond_the_logarithm_of_the_trials_is_not_resolved() -> None:
    plan = local("laplace", 35.0)
    found, _ = audit(PrivatizeOnceAnswer, plan, ReproducibleKey(0), trials=500)
    assert all(finding.unresolved and not finding.violated for finding in found)
    assert all(finding.bound == finding.resolution < 6 for finding in found)


def _one_run(plan: PrivacyPlan, key: Any = None, canaries: int = 1000) -> Any:
    return audit_one_run(DPSinkhornAnswer, plan, key or ReproducibleKey(0), canaries)


@pytest.mark.medium
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_one_run_of_the_correct_mechanism_is_not_flagged(plan: Plans, rate: float) -> None:
    found = [_one_run(plan(rate=rate), ReproducibleKey(seed)) for seed in range(3)]
    assert not any(finding.violated for finding in found)
    assert {finding.claim for finding in found} == {plan(rate=rate).epsilon()}


@pytest.mark.medium
def test_a_correct_run_of_weak_privacy_has_a_bound_that_says_so(plan: Plans) -> None:
    finding = _one_run(plan(eps=8.0))
    assert 1.5 < finding.bound < 8
    assert finding.unresolved


@pytest.mark.medium
def test_its_resolution_is_that_of_the_number_of_canaries(plan: Plans) -> None:
    assert _one_run(plan()).resolution == pytest.approx(5.78, abs=0.005)
    assert _one_run(plan(), canaries=50).resolution < 3


@pytest.mark.medium
@pytest.mark.parametrize(
    "key",
    [
        pytest.param(WeakKey(0.0, only_round=2), id="forgotten in one round"),
        pytest.param(RoundlessKey(3), id="the same noise twice"),
        pytest.param(WeakKey(0.05), id="a twentieth of the noise"),
    ],
)
def test_gross_faults_are_caught_in_one_run_at_a_claim_of_one(plan: Plans, key: Any) -> None:
    finding = _one_run(plan(), key, canaries=300)
    assert finding.claim <= 1
    assert finding.violated


@pytest.mark.medium
def test_the_key_decides_the_outcome(plan: Plans) -> None:
    one, same, other = (
        audit(DPSinkhornAnswer, plan(eps=8.0), ReproducibleKey(s), trials=100, canaries=100)
        for s in (1, 1, 2)
    )
    assert one == same
    assert one != other


class _Untold(DPSinkhornAnswer):
    """An installed answer that states no canaries."""

    canaries = classmethod(vars(Answer)["canaries"].__func__)


@pytest.mark.parametrize(
    ("answer", "change", "options", "message"),
    [
        (DPSinkhornAnswer, {"schedule": ClassSchedule(3)}, {}, "joint schedule"),
        (DPSinkhornAnswer, {}, {"trials": 15}, "at least 16 trials, received 15"),
        (DPSinkhornAnswer, {}, {"canaries": 1}, "at least 2 canaries, received 1"),
        (
            DPSinkhornAnswer, {}, {"clients": 4, "colluders": 4},
            "colluders=4 of clients=4 leave nobody .* at most 3",
        ),
        (DPSinkhornAnswer, {"adjacency": "replace-one"}, {}, "no canaries under adjacency=rep"),
        (ParameterGradientAnswer, {}, {"canaries": 5}, "no canaries of one run"),
        (ParameterGradientAnswer, {}, {"clients": 2}, "audited by itself: leave clients out"),
        (_Untold, {}, {}, r"train.dp_sinkhorn has no canaries.* override `Answer.canaries`"),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_is_refused(
    plan: Plans, answer: type[Answer], change: dict[str, Any], options: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        audit(answer, replace(plan(), **change), ReproducibleKey(0), **{"trials": 16, **options})


def _field(gradient: Tensor, records: int) -> RecordDict:
    return pack({"batch": records}, {"gradient": gradient})


def _array(gradient: Tensor, records: int) -> RecordDict:
    return pack({}, {"gradient": gradient, "batch": torch.zeros(records)})


def _shape(gradient: Tensor, records: int) -> RecordDict:
    return pack_replies([torch.zeros(records, gradient.shape[1])])


def _type(gradient: Tensor, records: int) -> RecordDict:
    return pack_replies([gradient.to(torch.float64 if records else torch.float32)])


def _metrics(gradient: Tensor, records: int) -> RecordDict:
    record = pack_replies([gradient])
    record["metrics"] = MetricRecord({"num-examples": records})
    return record


def _config(gradient: Tensor, records: int) -> RecordDict:
    record = pack_replies([gradient])
    record.config_records["fields"]["batch"] = records
    return record


def _empty(gradient: Tensor, records: int) -> RecordDict:
    return RecordDict({"fields": ConfigRecord({"json": "{}"})} if records else {})


@pytest.mark.medium
@pytest.mark.parametrize("own", [DPSinkhornAnswer, GSWGANAnswer])
@pytest.mark.parametrize(
    ("leaky", "where"),
    [
        (_field, "fields['json']"),
        (_array, "arrays['batch']"),
        (_shape, "arrays['gradient']"),
        (_type, "arrays['gradient']"),
        (_metrics, "metrics['num-examples']"),
        (_config, "fields['batch']"),
        (_empty, "the ConfigRecord 'fields'"),
    ],
)
def test_a_reply_that_tells_how_many_records_there_are_is_caught(
    plan: Plans, own: Any, leaky: Callable[[Tensor, int], RecordDict], where: str
) -> None:
    class Leaky(own):
        records = 0

        def compute(self, task: Task) -> Sequence[Tensor]:
            return [*super().compute(task), torch.tensor(len(task.shard))]

        @property
        def parts(self) -> list[str]:
            return ["gradient", "records"]

        @parts.setter
        def parts(self, names: list[str]) -> None:
            pass

        def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
            return leaky(reply["gradient"], int(reply["records"]))

    audited = plan() if own is DPSinkhornAnswer else of_critics(2)
    for answer, found in ((own, []), (Leaky, [f"Replies differ in {where} beside their noised"])):
        play = Play(answer, answer.canaries(audited)[0], 1, 0)
        leaks = play.leaks(ReproducibleKey(0))
        assert bool(leaks) is bool(found)
        assert all(any(sentence in leak for leak in leaks) for sentence in found)
