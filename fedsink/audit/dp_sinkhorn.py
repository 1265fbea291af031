"""DP-Sinkhorn audited: by thousands of runs with and without one canary, and in one run.

In a run, a client answers one request per round of the plan. `audit_transcripts` repeats whole
runs; `audit_one_run` puts many canaries into one client. Where noise is shared, the server sees
only the sum of a `SharedSum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsink.audit.bounds import guesses_for, one_run_epsilon
from fedsink.audit.finding import Features, Finding, compare, inverse_times
from fedsink.audit.method import (
    FEWEST_TRIALS,
    SHARD_SIZES,
    AuditResult,
    MethodAudit,
    at_least,
    check_joint,
    check_reply_schema,
    check_trials,
    points,
)
from fedsink.audit.shared_sum import ALONE, Release, SharedSum, replies
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import (
    BatchClip,
    Clip,
    JointSchedule,
    Key,
    PrivacyPlan,
    RecordClip,
)
from fedsink.protocol.dp_sinkhorn import GradientReply, GradientRequest
from fedsink.protocol.objective import Objective

Pack = Callable[[GradientRequest, Shard, Tensor], RecordDict]

_CLIPS: dict[str, Clip] = {clip.name: clip for clip in (RecordClip(1.0), BatchClip(1.0))}
_FAR = 4.0  # canaries lie this many clip bounds from the rows, so that every clip binds


@dataclass(frozen=True, kw_only=True)
class DPSinkhornAudit(MethodAudit):
    """`fedsink audit mode=central`, with the clips of whole records."""

    name: ClassVar[str] = "dp_sinkhorn"
    mode: ClassVar[str] = "central"
    clips: ClassVar[tuple[str, ...]] = tuple(_CLIPS)
    usage: ClassVar[str] = """mode=central [eps=1] [delta=1e-5] [rounds=4] [rate=0.2] [clip=record]
                                  [trials=4000] [canaries=1000] [clients=1] [colluders=0]"""
    explanation: ClassVar[str] = """\
  transcripts `trials` runs with and as many without one worst-case record, at the plan's rate and
              at rate 1 with the same σ; the time grows with trials·rounds.
  threshold   log((TPR − δ)/FPR) and its mirror image, Clopper–Pearson; needs no assumption, and
              many trials: it is weak for Gaussian noise.
  Gaussian    Φ⁻¹(TPR) − Φ⁻¹(FPR) against μ = √rounds/σ: exact at rate 1, finds small faults.
  1 run       each of `canaries` records is in by a toss; Steinke, Nasr, Jagielski (2023),
              Theorem 5.2. Weak with clip=batch, where all canaries share one bound.
  clients     so many share one noise (noise.share=secure_aggregation): the server sees the sum of
              their integers, and `colluders` of them tell it theirs. The time grows with them."""
    examples: ClassVar[tuple[str, ...]] = (
        "mode=central eps=1 rate=1 clip=batch",
        "mode=central eps=1 rate=1 clients=10 colluders=3",
    )

    clip: str = RecordClip.name
    eps: float = 1.0
    delta: float = 1e-5
    rounds: int = at_least(1, 4)
    rate: float = 0.2
    trials: int = at_least(FEWEST_TRIALS, 4000)
    canaries: int = at_least(2, 1000)
    clients: int = at_least(1, 1)
    colluders: int = at_least(0, 0)

    def run(self, key: Key) -> AuditResult:
        """Audits by transcripts and in one run; searches replies for more than their gradient."""
        plan = PrivacyPlan.solve(
            eps=self.eps,
            rate=self.rate,
            rounds=self.rounds,
            delta=self.delta,
            clip=_CLIPS[self.clip],
            schedule=JointSchedule(),
        )
        cohort, confidence = SharedSum(self.clients, self.colluders), self.confidence
        one_run = audit_one_run(
            plan, key, canaries=self.canaries, confidence=confidence, cohort=cohort
        )
        transcripts = audit_transcripts(
            plan, key, trials=self.trials, confidence=confidence, cohort=cohort
        )
        leaks = audit_schema(plan, key, cohort=cohort)
        return AuditResult(plan.to_dict(), [*transcripts, one_run], leaks)


@dataclass(frozen=True)
class Canary:
    """A record whose presence moves every round's release by exactly the sensitivity.

    Two rows in one dimension make the release a point of the plane. In round t the request
    steers the canary's contribution to the direction v_t = (cos θ_t, sin θ_t). It differs from
    round to round, so that noise used in two rounds cancels in their difference and the canary does
    not.

    - `clip=record`: the potentials choose the softmax weights of the two rows, so the canary's
      contribution is a multiple of v_t beyond the bound. Absent 0, present Δv_t.
    - `clip=batch`: the self gradient is −2Δv_t and the rows pull by more in the direction +v_t.
      Absent −Δv_t, present +Δv_t, the two ends of the ball: 2Δ apart.
    """

    plan: PrivacyPlan
    cohort: SharedSum = ALONE

    @property
    def absent(self) -> Shard:
        """A client without any record: the neighbour of `present`."""
        return points(torch.zeros(0, 1))

    @property
    def present(self) -> Shard:
        """The client that holds only the canary."""
        return points(torch.zeros(1, 1))

    def requests(self) -> list[GradientRequest]:
        """One request per round, as it arrives at the client: through the wire's own checks."""
        return [self._request(number, v) for number, v in enumerate(self.directions(), start=1)]

    def directions(self) -> Iterator[Tensor]:
        """v_t for every round, θ_t inside the first quadrant."""
        for number in range(self.plan.rounds):
            angle = (number + 0.5) / self.plan.rounds * math.pi / 2.0
            yield torch.tensor([math.cos(angle), math.sin(angle)])

    def _request(self, number: int, v: Tensor) -> GradientRequest:
        far = _FAR * self.plan.clip.bound
        if self.plan.clip.per_record:
            rows = torch.full((2, 1), far)
            return _request(self.plan, number, rows, _steering(v), torch.zeros(2, 1), self.cohort)
        toward = v.unsqueeze(1)
        back = -2.0 * self.plan.clip.bound * toward
        return _request(self.plan, number, far * toward, torch.zeros(2), back, self.cohort)


def audit_transcripts(
    plan: PrivacyPlan,
    key: Key,
    *,
    trials: int,
    confidence: float,
    release: Release = client_gradient,
    cohort: SharedSum = ALONE,
) -> list[Finding]:
    """Tells runs of the plan with a canary from runs without, at the plan's rate and at rate 1.

    At rate 1 the T rounds are one Gaussian mechanism of μ = √T/σ, so they are also held against
    its exact trade-off, which finds far smaller faults than (ε, δ) can: the second Finding there.
    A violation of it refutes the plan whatever the mechanism really is.

    Guarantees:
        - The claim is the ε of exactly the plan that was run.
        - Threshold and direction are chosen on transcripts that the bound does not count.

    Args:
        plan: With the joint schedule.
        key: Source of every random number; clients below 4·trials·(the cohort's number) are used.
        trials: Runs with, and as many without the canary; half of them fit the distinguisher.
        confidence: Of each bound, in (0, 1).
        release: The client's mechanism.
        cohort: Clients, whose sum the server sees.

    Raises:
        ConfigError: If the plan has a class schedule or there are fewer than eight trials.
    """
    check_joint(plan)
    check_trials(trials)
    findings: list[Finding] = []
    for rate in dict.fromkeys([plan.rate, 1.0]):
        audited = replace(plan, rate=rate)
        canary, first = Canary(audited, cohort), 0 if rate == plan.rate else 2 * trials
        findings += compare(
            _transcripts(canary, canary.present, release, key, first, trials),
            _transcripts(canary, canary.absent, release, key, first + trials, trials),
            audited=f"{2 * trials} transcripts, {cohort.words}q = {rate:g}",
            claim=cohort.epsilon(canary.requests()[0]),
            delta=plan.delta,
            confidence=confidence,
            gaussian=rate == 1.0,
        )
    return findings


def audit_one_run(
    plan: PrivacyPlan,
    key: Key,
    *,
    canaries: int,
    confidence: float,
    release: Release = client_gradient,
    cohort: SharedSum = ALONE,
) -> Finding:
    """Runs the plan once at one client, with canaries on the axes of an m-dimensional space.

    Canary j contributes along axis j only, so its score is read there: the features are the
    replies of all rounds at that axis, and the scores w = C⁻¹s weigh them by their covariance over
    the canaries, which needs no knowledge of the coins. The highest scores are guessed to be in,
    the lowest to be out, as many as `guesses_for` fixed before the run.

    All canaries at one client are the strongest audit: a canary is in one shard. With `clip=batch`
    all canaries share one clip bound, so each of them moves the release by Δ·√(2/m) only and little
    can be proved.

    Args:
        plan: With the joint schedule.
        key: Source of every random number, the coins included; client numbers from 0 on are used.
        canaries: m ≥ 2.
        confidence: Of the bound, in (0, 1).
        release: The client's mechanism.
        cohort: Clients, whose sum the server sees.

    Raises:
        ConfigError: If the plan has a class schedule or there are fewer than two canaries.
    """
    check_joint(plan)
    if canaries < 2:
        raise ConfigError(f"A one-run audit needs at least 2 canaries, received {canaries}.")
    per_record = plan.clip.per_record
    per_canary = 1.0 if per_record else 0.5 * math.sqrt(2.0 / canaries)
    mu = per_canary * plan.rate * math.sqrt(plan.rounds) / cohort.left(plan).noise_multiplier
    guesses = guesses_for(mu, canaries=canaries, delta=plan.delta, confidence=confidence)

    coins = key.stream("coins", client=0, round=0).uniform(canaries) < 0.5
    distance = _FAR * plan.clip.bound * (1.0 if per_record else math.sqrt(canaries))
    shard = points(-distance * torch.eye(canaries)[coins])
    # Two rows at the origin: each canary pulls along its own axis, split by the potentials.
    rows = torch.zeros(2, canaries)
    requests = [
        _request(plan, number, rows, _steering(v), torch.zeros_like(rows), cohort)
        for number, v in enumerate(Canary(plan).directions(), start=1)
    ]
    scores = _scores(plan, torch.cat(cohort.seen(requests, shard, release, key, 0)))
    order = np.argsort(-scores, kind="stable")
    half = guesses // 2
    present = coins.numpy()
    correct = int(present[order[:half]].sum() + (~present[order[-half:]]).sum())

    def bound(right: int, guessed: int) -> float:
        return one_run_epsilon(
            correct=right,
            guesses=guessed,
            canaries=canaries,
            delta=plan.delta,
            confidence=confidence,
        )

    return Finding(
        audited=f"1 run, {cohort.words}{canaries} canaries, q = {plan.rate:g}",
        method=f"{correct} of {guesses} guesses",
        claim=cohort.epsilon(requests[0]),
        bound=bound(correct, guesses),
        confidence=confidence,
        resolution=bound(canaries, canaries),
    )


def pack_reply(request: GradientRequest, shard: Shard, gradient: Tensor) -> RecordDict:
    """The content of a client's reply: only the gradient."""
    return GradientReply(gradient).to_record()


def audit_schema(
    plan: PrivacyPlan,
    key: Key,
    *,
    release: Release = client_gradient,
    pack: Pack = pack_reply,
    cohort: SharedSum = ALONE,
) -> tuple[str, ...]:
    """Searches replies of clients with none, one and many records for more than the gradient.

    Each client is asked at the plan's rate and at rate 1: batches are empty, partial and full.

    Returns:
        A sentence on each thing found, as `check_reply_schema`.
    """
    leaks: dict[str, None] = {}
    for rate in {plan.rate, 1.0}:
        request = Canary(replace(plan, rate=rate), cohort).requests()[0]
        kind = torch.float32 if request.fixed_point is None else torch.int64
        expected = GradientReply(torch.zeros_like(request.rows, dtype=kind)).to_record()
        for client, size in enumerate(SHARD_SIZES):
            shard = points(torch.zeros(size, 1))
            (gradient,) = replies([request], shard, release, key, client)
            found = check_reply_schema(expected, pack(request, shard, gradient))
            leaks |= dict.fromkeys(found)
    return tuple(leaks)


def _request(
    plan: PrivacyPlan,
    number: int,
    rows: Tensor,
    potentials: Tensor,
    self_gradient: Tensor,
    cohort: SharedSum,
) -> GradientRequest:
    """An unconditional request with λ = 1, packed and read again."""
    request = GradientRequest(
        round=number,
        label=None,
        plan=plan,
        objective=Objective(lam=1.0, classes=1, label_weight=0.0),
        view={"name": "pixel", "shape": [rows.shape[1]]},
        rows=rows,
        row_labels=torch.zeros(len(rows), dtype=torch.int64),
        potentials=potentials,
        self_gradient=self_gradient,
    )
    return GradientRequest.from_record(cohort.asked(request).to_record())


def _steering(v: Tensor) -> Tensor:
    """Potentials f with softmax(f) ∝ v > 0, at λ = 1, of rows equally far from every record."""
    return v.log()


def _transcripts(
    canary: Canary, shard: Shard, release: Release, key: Key, first: int, trials: int
) -> Features:
    """The replies of `trials` independent runs, (trials, 2T)."""
    requests = canary.requests()
    runs = [
        torch.cat(canary.cohort.seen(requests, shard, release, key, first + trial)).flatten()
        for trial in range(trials)
    ]
    return np.asarray(torch.stack(runs).to(torch.float64).numpy())


def _scores(plan: PrivacyPlan, gradients: Tensor) -> Features:
    """One score per canary, (m,), from the replies of all rounds, (2T, m)."""
    features: Features = np.asarray(gradients.to(torch.float64).numpy())
    if plan.clip.per_record:
        signal = torch.cat(list(Canary(plan).directions()))
    else:
        signal = torch.ones(len(gradients))  # transport splits a record evenly over the rows
    weights = inverse_times(np.atleast_2d(np.cov(features)), signal.to(torch.float64).numpy())
    scores: Features = weights @ features
    return scores
