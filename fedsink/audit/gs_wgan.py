"""GS-WGAN's account, and its audit by repetition: records that turn a critic's gradient round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsink.audit.finding import Features, Finding, compare
from fedsink.audit.method import (
    FEWEST_TRIALS,
    SHARD_SIZES,
    AuditResult,
    CentralAccount,
    MethodAudit,
    at_least,
    check_joint,
    check_reply_schema,
    check_trials,
)
from fedsink.clients.answer import Task
from fedsink.clients.gs_wgan import GSWGANAnswer, critic_gradients
from fedsink.clients.pool import Pool
from fedsink.clients.shard import Shard
from fedsink.clients.states import States
from fedsink.models.critics import CriticTraining
from fedsink.privacy import CriticClip, JointSchedule, Key, PrivacyPlan
from fedsink.privacy.adjacency import ADD_REMOVE, CLIENT, REPLACE_ONE, USER
from fedsink.protocol.dp_sinkhorn import GradientReply
from fedsink.protocol.gs_wgan import CriticRequest, Critics

CriticRelease = Callable[[CriticRequest, Sequence[Task], Pool, slice], Tensor]

_ROWS = 16  # of a message; every other one is of the records' class
_KNOWN, _CANARY = -1.0, 1.0
_FAKES = (-2.0, -2.0, -2.0, 2.0)
_AT_ONCE = 4096  # critics that are trained together


GS_WGAN_ACCOUNT = CentralAccount(
    clip=CriticClip.name,
    counts=("turns", "critics", "rows"),
    adjacencies=(USER,),
    given=("rate",),
    usage="clip=critic sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]",
    explanation="""\
clip=critic is the account of strategy=gs_wgan. rate is the probability with which a critic is
asked in a round, in secret; left out it is 1, and nothing is assumed to be secret.

  turns=P         clients answer in turn, each in ⌈rounds/P⌉ rounds
  critics=M       of a client (default 1); matters under client
  rows=N          each of N rows is clipped by itself, as published; sigma is the noise of a row""",
    examples="""\
  fedsink account clip=critic eps=10 rounds=1000 turns=50         how much noise?
  fedsink account clip=critic sigma=1.07 rounds=20 rows=32        as published, 20 uses in turn""",
)


@dataclass(frozen=True, kw_only=True)
class GSWGANAudit(MethodAudit):
    """`fedsink audit mode=central clip=critic`."""

    name: ClassVar[str] = "gs_wgan"
    mode: ClassVar[str] = "central"
    clips: ClassVar[tuple[str, ...]] = (CriticClip.name,)
    usage: ClassVar[str] = """mode=central clip=critic [critics=4] [adjacency=add-remove] [eps=1]
                                  [delta=1e-5] [rounds=4] [rate=1] [trials=4000]"""
    explanation: ClassVar[str] = """\
clip=critic   the critics of strategy=gs_wgan, each asked with probability `rate` (default 1):
              adjacency=add-remove, replace-one, user or client. A change of one critic's records
              turns its gradient round, all 2C. Runs are told apart along the known difference,
              and along a direction that half of them show."""
    examples: ClassVar[tuple[str, ...]] = ("mode=central eps=10 clip=critic critics=20",)

    clip: str = CriticClip.name
    critics: int = at_least(1, 4)
    adjacency: str = ADD_REMOVE
    eps: float = 1.0
    delta: float = 1e-5
    rounds: int = at_least(1, 4)
    rate: float = 1.0
    trials: int = at_least(FEWEST_TRIALS, 4000)

    def run(self, key: Key) -> AuditResult:
        """Audits by transcripts, and searches replies for more than their gradient."""
        plan = PrivacyPlan.solve(
            eps=self.eps,
            rate=self.rate,
            rounds=self.rounds,
            delta=self.delta,
            clip=CriticClip(0.1, self.critics),
            schedule=JointSchedule(),
            adjacency=self.adjacency,
        )
        findings = audit_critics(
            plan, key, critics=self.critics, trials=self.trials, confidence=self.confidence
        )
        leaks = audit_critic_schema(plan, key, critics=self.critics)
        return AuditResult(plan.to_dict(), findings, leaks)


@dataclass(frozen=True)
class CriticCanary:
    """Records whose change moves every round's release by exactly the sensitivity.

    Records are points on a line, and rows of the messages lie at 0. Three quarters of the rows to
    train against lie at −2 and one at 2, so that a critic of records at −1 falls at 0, and a
    critic whose records lie at 1, half of them or more, rises there: it grows to where the share of
    generated rows below is larger than that of records. All rows are one point, hence all rows of
    a critic's gradient are equal, and clipped as a whole they are ±C·v_t: 2C apart.

    v_t is constant over the rows of the records' class, the even ones in even and the odd ones in
    odd rounds, and zero over the others: noise used in two rounds cancels in their difference, and
    the canary does not.

    The client holds a known record for each of its M critics. Besides these it holds:

    - `add-remove`: one canary of the first critic, or nothing.
    - `replace-one`: one canary of the first critic, or one more known record.
    - `user`: two canaries of one user of the first critic, or nothing.
    - `client`: nothing; all records are canaries, or all are known: every critic turns round.

    Args:
        plan: To audit, with the critic clip.
        critics: M.
    """

    plan: PrivacyPlan
    critics: int

    @property
    def absent(self) -> Shard:
        """The neighbour of `present`: every critic falls."""
        besides = [_KNOWN] if self.plan.adjacency == REPLACE_ONE else []
        return self._shard([_KNOWN] * self.critics, besides)

    @property
    def present(self) -> Shard:
        """The client with the canaries: the first critic rises, or every one."""
        if self.plan.adjacency == CLIENT:
            return self._shard([_CANARY] * self.critics, [])
        canaries = [_CANARY] * (2 if self.plan.adjacency == USER else 1)
        return self._shard([_KNOWN] * self.critics, canaries)

    @property
    def difference(self) -> Tensor:
        """Difference of the releases of a run with and without the canaries, (T, n)."""
        moved = self.critics if self.plan.adjacency == CLIENT else 1
        asked = torch.stack([self._row_labels(t) == 0 for t in self._rounds]).to(torch.float64)
        return moved * self.plan.sensitivity * asked / asked.sum(1, keepdim=True).sqrt()

    def requests(self) -> list[CriticRequest]:
        """One request per round, as it arrives at the client: through the wire's own checks."""
        return [self._request(round) for round in self._rounds]

    @property
    def _rounds(self) -> range:
        return range(1, self.plan.rounds + 1)

    def _row_labels(self, round: int) -> Tensor:
        return (torch.arange(_ROWS) + round) % 2

    def _request(self, round: int) -> CriticRequest:
        # Without a penalty a critic is as steep as it becomes: every clip binds.
        training = CriticTraining(
            self.critics, steps=1, warm=30, batch=16, history=1, lr=0.05, penalty=0.0
        )
        fakes = torch.tensor(_FAKES).unsqueeze(1)
        request = CriticRequest(
            round=round,
            plan=self.plan,
            critics=Critics(training, classes=2, hidden=4, scale=1.0),
            view={"name": "pixel", "shape": [1]},
            rows=torch.zeros(_ROWS, 1),
            row_labels=self._row_labels(round),
            fakes=fakes,
            fake_labels=torch.zeros(len(fakes), dtype=torch.int64),
        )
        return CriticRequest.from_record(request.to_record())

    def _shard(self, known: list[float], besides: list[float]) -> Shard:
        """A client whose critics hold a known record each, and its first critic also `besides`.

        Critics are dealt records by the number of the line, or by user: here to the same effect.
        """
        values = torch.tensor([*known, *besides]).unsqueeze(1)
        users = torch.tensor([*range(1, len(known) + 1), *[0] * len(besides)])
        return Shard(values, torch.zeros(len(values), dtype=torch.int64), users)


def audit_critics(
    plan: PrivacyPlan,
    key: Key,
    *,
    critics: int,
    trials: int,
    confidence: float,
    release: CriticRelease = critic_gradients,
) -> list[Finding]:
    """Tells runs of the plan with a canary from runs without: critics trained, asked, and noised.

    At rate 1 all T rounds are one Gaussian mechanism of μ = √T/σ. Runs are told apart best by their
    inner product with the difference that the canary makes, which is known. A fault that lowers
    the noise of only some rounds or values shows along another direction: the best one of half of
    the runs.

    Guarantees:
        - The claim is the ε of exactly the plan that was run, under its adjacency.
        - Threshold and direction are chosen on transcripts that the bound does not count.

    Args:
        plan: With the critic clip and the joint schedule.
        key: Source of every random number; client numbers below 2·trials are used.
        critics: M, of each client.
        trials: Runs with, and as many without the canary; half of them fit the distinguisher.
        confidence: Of each bound, in (0, 1).
        release: The client's mechanism.

    Raises:
        ConfigError: If the plan has another schedule or there are fewer than eight trials.
    """
    check_joint(plan)
    check_trials(trials)
    canary = CriticCanary(plan, critics)
    present = transcripts(canary, canary.present, release, key, range(trials))
    absent = transcripts(canary, canary.absent, release, key, range(trials, 2 * trials))
    known = canary.difference.reshape(-1, 1).numpy()
    return [
        finding
        for direction, pair in (
            ("known", (present @ known, absent @ known)),
            ("fitted", (present, absent)),
        )
        for finding in compare(
            *pair,
            audited=f"{2 * trials} transcripts, {direction} direction",
            claim=plan.epsilon(),
            delta=plan.delta,
            confidence=confidence,
            gaussian=plan.rate == 1.0,
        )
    ]


def audit_critic_schema(
    plan: PrivacyPlan, key: Key, *, critics: int, answer: type[GSWGANAnswer] = GSWGANAnswer
) -> tuple[str, ...]:
    """Searches replies of clients with none, one and many records for more than the gradient.

    Each client answers every round: M critics without a past, and M with one.

    Returns:
        A sentence on each thing found, as `check_reply_schema`.
    """
    leaks: dict[str, None] = {}
    requests = CriticCanary(plan, critics).requests()
    for client, size in enumerate(SHARD_SIZES):
        shard = Shard(torch.zeros(size, 1), torch.zeros(size).long(), torch.arange(size))
        client_task = task(shard, key, client)
        for request in requests:
            answered = answer([request])
            [gradient] = answered.compute(client_task)
            reply = answered.record({answered.parts[0]: gradient})
            expected = GradientReply(torch.zeros_like(request.rows)).to_record()
            leaks |= dict.fromkeys(check_reply_schema(expected, reply))
    return tuple(leaks)


def transcripts(
    canary: CriticCanary, shard: Shard, release: CriticRelease, key: Key, clients: range
) -> Features:
    """The replies of independent runs at clients that hold the same records, (clients, T·n)."""
    requests = canary.requests()
    together = max(1, _AT_ONCE // canary.critics)
    runs = []
    for first in range(0, len(clients), together):
        tasks = [task(shard, key, client) for client in clients[first : first + together]]
        pool, every = Pool([shard] * len(tasks)), slice(0, len(tasks))
        answers = [release(request, tasks, pool, every) for request in requests]
        runs.append(torch.stack(answers, dim=1))
    return np.asarray(torch.cat(runs).flatten(1).to(torch.float64).numpy())


def task(shard: Shard, key: Key, client: int) -> Task:
    """A simulated client without a past."""
    states = States(None, str(client), simulated=True, at_once=False, rewinds=False)
    return Task((b"",), client, shard, key, partial(states.of, b""))
