"""An answer, played on two neighbouring data sets as a node would give it.

The auditor is a server that chooses every public part of a message and knows the two data sets. It
reads the messages of a run as a node does, lets clients without a past answer them, and sees what
the server would: a reply, or the sum of those that share one noise. The claim is what a node's
ledger would charge. No method is named here: see `Answer.canaries`.

>>> from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
>>> from fedsink.data.maps import PointBall
>>> from fedsink.privacy import ReproducibleKey
>>> from fedsink.protocol.privatize_once import LocalPlan
>>> plan = LocalPlan("laplace", PointBall("l1", radius=1.0, size=1), epsilon=1.0)
>>> result = audit(PrivatizeOnceAnswer, plan, ReproducibleKey(0), trials=40)
>>> [finding.violated for finding in result.findings], result.leaks
([False, False, False, False], ())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, RecordDict
from torch import Tensor

from fedsink.audit.bounds import guesses_for, one_run_epsilon
from fedsink.audit.distinguisher import Features, Finding, compare, inverse_times
from fedsink.clients.answers.base import Answer, Asked, BatchedAnswer, Neighbours, Task
from fedsink.clients.answers.central import CentralAnswer, central_charge
from fedsink.clients.owner.states import States
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import Gaussian, JointSchedule, Key, ReproducibleKey, SecretKey
from fedsink.privacy.adjacency import REPLACE_ONE
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.privacy.noise_share import NoiseShare
from fedsink.protocol.dp_sinkhorn import MOST_ROUNDS
from fedsink.protocol.requests import CentralRequest, Packable
from fedsink.values import privacy_checks as checks

FEWEST_TRIALS = 16  # an eighth of them fits the distinguisher, and an eighth chooses it
_BITS = 32  # of a sum of integers
_ROOM = 4.0  # the radius in reaches of a total, so that nothing but the clip limits a canary
_ALIKE = 2  # clients of a batch that answer by themselves as well
_AT_ONCE = 1024  # clients that answer together
_COINS = 16  # plays of both data sets with the same coins, which show what a canary moves
_MANY = 40  # records of a client whose replies are searched
_UNKEYED = (b"",) * MOST_ROUNDS  # digests of rounds; the noise of a seed ignores them


class AuditResult(NamedTuple):
    """Findings, each a claim beside what was proved about it, and a sentence on each leak."""

    findings: list[Finding]
    leaks: tuple[str, ...]


def audit(
    answer: type[Answer],
    plan: Any,
    key: Key,
    *,
    trials: int = 4000,
    confidence: float = 0.95,
    clients: int = 1,
    colluders: int = 0,
    canaries: int | None = None,
) -> AuditResult:
    """Tells replies on neighbouring data sets apart, at the plan's rate and at rate 1.

    A quarter of the `trials` of each data set chooses the distinguisher; of `clients` m > 1 one has
    the canary and the others nothing, they share one noise, the server sees the sum of their
    integers, and `colluders` x < m tell it theirs. `canaries` also audits one run with so many.

    Guarantees:
        - The claim is the ε that a node is charged for exactly the messages that were played.
        - The distinguisher is chosen on plays that the bound does not count.
        - A correct mechanism has a bound above its claim with probability at most 1 − confidence,
          however many bounds there are: each has 1 − (1 − confidence)/bounds.
    """
    if trials < FEWEST_TRIALS:
        raise ConfigError(f"An audit needs at least {FEWEST_TRIALS} trials, received {trials}.")
    checks.within("confidence", confidence, "(0, 1)")
    if not colluders < clients:
        raise ConfigError(
            f"colluders={colluders} of clients={clients} leave nobody to attack: take at most "
            f"{clients - 1}."
        )
    if getattr(plan, "schedule", JointSchedule()) != JointSchedule():
        raise ConfigError("An audit runs the joint schedule: its canaries are used in every round.")
    full = _unsampled(plan)
    plays = [
        (Play(answer, pair, clients, colluders), Play(answer, unsampled, clients, colluders))
        for audited in ([plan] if full is plan else [plan, full])
        for pair, unsampled in zip(answer.canaries(audited), answer.canaries(full), strict=True)
    ]
    bounds = sum(1 + play.gaussian for play, _ in plays) + (canaries is not None)
    each = 1.0 - (1.0 - confidence) / bounds
    findings: list[Finding] = []
    leaks: list[str] = []
    if canaries is not None:
        crowd: Any = {"confidence": each, "clients": clients, "colluders": colluders}
        findings.append(audit_one_run(answer, plan, key, canaries, **crowd))
    first = _COINS * clients  # number of clients that have answered
    tuning = trials // 4
    counted = 2 * (trials - tuning)
    for play, unsampled in plays:
        tosses = key.stream("tosses", client=first, round=0).uniform(counted) < 0.5
        present = tuning + int(tosses.sum())
        absent = 2 * trials - present
        findings += compare(
            (
                play.seen(play.pair.present, key, first, present),
                play.seen(play.pair.absent, key, first + present * clients, absent),
            ),
            tuning,
            unsampled.difference(key),
            audited=f"{2 * trials} plays of {play.pair.words}{play.words}",
            claim=play.claim,
            delta=play.charge.delta,
            confidence=each,
            gaussian=play.gaussian,
        )
        leaks += play.leaks(key)
        first += 2 * trials * clients
    return AuditResult(findings, tuple(dict.fromkeys(leaks)))


def audit_one_run(
    answer: type[Answer],
    plan: Any,
    key: Key,
    canaries: int,
    *,
    confidence: float = 0.95,
    clients: int = 1,
    colluders: int = 0,
) -> Finding:
    """Plays one run at a client with m canaries, each of which is there by the toss of a coin."""
    # Steinke, Nasr, Jagielski 2023. A canary's features are the rows of all replies along the
    # direction in which it moves them by itself. Its score weighs them by their covariance over the
    # canaries, without knowledge of the coins. The highest scores are guessed to be there, the
    # lowest not to be, as many as `guesses_for` fixed before the run.
    if canaries < 2:
        raise ConfigError(f"A one-run audit needs at least 2 canaries, received {canaries}.")
    kinds = answer.canaries(plan, canaries), answer.canaries(_unsampled(plan), canaries)
    [pair], [unsampled] = kinds
    play = Play(answer, pair, clients, colluders)
    own = Play(answer, unsampled, clients, clients - 1)  # what one client sends
    coins = key.stream("coins", client=0, round=0).uniform(canaries) < 0.5
    alone = [pair.present.part(torch.tensor([j])) for j in range(canaries)]
    moved = own.replies(alone, key, [0] * canaries) - own.replies([pair.absent], key, [0])
    held = [pair.present.part(coins.nonzero().flatten()), *[pair.absent] * (play.honest - 1)]
    [seen] = play.replies(held, key, range(play.honest))
    moved = moved.reshape(canaries, -1, play.width)  # rows of all replies
    lengths = moved.norm(dim=2)
    along = torch.einsum("jrd,rd->jr", moved, seen.reshape(-1, play.width)) / lengths
    features, signal = along.numpy(), lengths.mean(0).numpy()
    scores = features @ inverse_times(np.atleast_2d(np.cov(features, rowvar=False)), signal)

    promise: Any = {"canaries": canaries, "delta": play.charge.delta, "confidence": confidence}
    scale = Gaussian.from_epsilon(1.0, play.claim, play.charge.delta).scale
    guesses = guesses_for(1.0 / scale, **promise)
    order, there = np.argsort(-scores, kind="stable"), coins.numpy()
    correct = int(there[order[: guesses // 2]].sum() + (~there[order[-(guesses // 2) :]]).sum())
    return Finding(
        audited=f"1 run of {canaries} canaries{play.words}",
        method=f"{correct} of {guesses} guesses",
        claim=play.claim,
        bound=one_run_epsilon(correct=correct, guesses=guesses, **promise),
        confidence=confidence,
        resolution=one_run_epsilon(correct=canaries, guesses=canaries, **promise),
    )


class Play:
    """The messages of a run, as clients answer them, and what the server then sees."""

    # `charge` is for a sum that of the noise which no colluder knows, `words` the rate and whose
    # sum is seen, `width` that of a row of a reply, once known.

    def __init__(
        self, answer: type[Answer], pair: Neighbours, clients: int, colluders: int
    ) -> None:
        self.pair, self.clients, self.honest, self.width = pair, clients, clients - colluders, 1
        self.answers = [_read(answer, request) for request in pair.requests]
        first, self.grid, self.words = self.answers[0], None, ""
        plan, self.charge = getattr(first, "plan", None), first.charge(trusted=False)
        if clients > 1:
            if not (
                isinstance(first, CentralAnswer) and isinstance(pair.requests[0], CentralRequest)
            ):
                raise ConfigError(f"train.{answer.name} is audited by itself: leave clients out.")
            shared = IntegerGaussian.finest(
                first.plan,
                [clients],
                size=first.size,
                bits=_BITS,
                radius=_ROOM * first.plan.clip.reach(len(pair.present)),
            )
            self.grid, left = shared.fixed_point, NoiseShare().left(first.plan, clients, colluders)
            self.charge = central_charge(left, shared, trusted=True)
            requests = [replace(r, share=clients, fixed_point=self.grid) for r in pair.requests]
            self.answers = [_read(answer, request) for request in requests]
            self.words = f", sum of {clients}" + (f", {colluders} collude" if colluders else "")
        rate = getattr(plan, "rate", None)
        self.words += "" if rate is None else f", q = {rate:g}"
        event, self.gaussian = self.charge.event, rate in (None, 1.0)
        while hasattr(event, "event"):  # of each of equal uses, of a sample
            self.gaussian &= getattr(event, "sampling_probability", 1.0) == 1.0
            event = event.event
        self.gaussian &= isinstance(event, checks.require("dp_accounting").GaussianDpEvent)

    @cached_property
    def claim(self) -> float:
        """The ε that is charged."""
        return self.charge.epsilon()

    def seen(self, shard: Shard, key: Key, first: int, runs: int) -> Features:
        """Returns the features that the server sees of independent runs, (runs, features)."""
        # Run n has clients first + n·m to first + n·m + m − 1, of whom the honest ones come first.
        blocks, nothing = [], shard.part(torch.zeros(0, dtype=torch.int64))
        of_run, together = range(self.honest), max(1, _AT_ONCE // self.honest)
        for start in range(0, runs, together):
            numbers = range(start, min(start + together, runs))
            clients = [first + n * self.clients + k for n in numbers for k in of_run]
            shards = [nothing if k else shard for _ in numbers for k in of_run]
            blocks.append(self.replies(shards, key, clients))
        return np.asarray(torch.cat(blocks))

    def difference(self, key: Key) -> Features:
        """Returns how far the canary moves each feature; with the same coins noise cancels."""
        shards = self.pair.present, self.pair.absent
        present, absent = (self.seen(shard, key, 0, _COINS) for shard in shards)
        return np.asarray((present - absent).mean(0))

    def replies(self, shards: Sequence[Shard], key: Key, clients: Sequence[int]) -> Tensor:
        """Returns the features that the server sees of the honest clients of each run."""
        pool, columns = Pool(shards), []
        tasks = [_task(shard, key, client) for shard, client in zip(shards, clients, strict=True)]
        for answer in self.answers:
            each = _computed(answer, tasks, pool)
            self.width = each[0][0].shape[-1]
            runs = [each[n : n + self.honest] for n in range(0, len(each), self.honest)]
            sums = [[sum(parts[1:], parts[0]) for parts in zip(*run, strict=True)] for run in runs]
            if self.grid is not None:
                sums = [[self.grid.decoded(part) for part in run] for run in sums]
            columns.append(torch.stack([answer.features(run) for run in sums]))
        return torch.cat(columns, dim=1)

    def leaks(self, key: Key) -> list[str]:
        """Sentences on what replies hold that depends on records beside their noised values."""
        # Clients with either shard, and where their size is secret also with none and many, must
        # reply alike but for the bytes of arrays: all else may depend on a batch, a loss, a norm.
        shards = [self.pair.absent, self.pair.present]
        if self.charge.adjacency != REPLACE_ONE:
            shards += [shards[1].part(torch.zeros(size).long()) for size in (0, _MANY)]
        tasks = [_task(shard, key, client) for client, shard in enumerate(shards)]
        found: dict[str, None] = {}
        for answer in self.answers:
            replies = [dict(zip(answer.parts, answer.compute(t), strict=True)) for t in tasks]
            one, *others = (_all_but_bytes(answer.record(reply)) for reply in replies)
            for other in others:
                found |= {name: None for name in one | other if one.get(name) != other.get(name)}
        return [f"Replies differ in {name} beside their noised values." for name in found]


def _unsampled(plan: Any) -> Any:
    """Returns the plan at rate 1, where it has a rate below that."""
    return replace(plan, rate=1.0) if getattr(plan, "rate", 1.0) < 1.0 else plan


def _read(answer: type[Answer], request: Packable) -> Answer:
    """Returns the answer to a canary's request, through the wire's own checks."""
    try:
        return answer.read(request.to_record(), None)
    except ValueError as error:
        raise ConfigError(f"train.{answer.name} refuses its canary: {error}") from error


def _task(shard: Shard, key: Key, client: int) -> Task:
    """Returns a simulated client without a past."""
    states = States(None, str(client), simulated=True, at_once=False, rewinds=False)
    return Task(_UNKEYED, client, shard, key, partial(states.of, b""))


def _computed(answer: Answer, tasks: Sequence[Task], pool: Pool) -> Sequence[Sequence[Tensor]]:
    """Returns the replies of clients: together, where that gives what some of them reply alone."""
    key = tasks[0].key
    if isinstance(answer, BatchedAnswer) and isinstance(key, ReproducibleKey | SecretKey):
        of_client = {task.client: task.state for task in tasks}
        asked = Asked(
            answer,
            np.array([task.client for task in tasks]),
            torch.arange(len(tasks)),
            _UNKEYED,
            key,
            0,
            lambda client, *names: of_client[client](*names),
        )
        together = answer.compute_each([asked], pool, summed=False)
        alone = torch.stack([torch.stack([*answer.compute(task)]) for task in tasks[:_ALIKE]])
        apart = (alone.double() - together[:_ALIKE].double()).abs().max()
        if apart <= 1e-4 * alone.double().abs().max():
            return list(together)
    return [answer.compute(task) for task in tasks]


def _all_but_bytes(content: RecordDict) -> dict[str, object]:
    """Returns a message's content except the arrays' bytes, by the name of the part."""
    parts: dict[str, object] = {}
    for name, part in content.items():
        parts[f"the {type(part).__name__} {name!r}"] = True
        for key, value in part.items():
            parts[f"{name}[{key!r}]"] = (
                (value.dtype, tuple(value.shape), value.stype, len(value.data))
                if isinstance(value, Array)
                else value
            )
    return parts
