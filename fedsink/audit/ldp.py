"""Local mode, audited by repetition: two records as far apart as the map allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedsink.audit.canary import check_trials, points
from fedsink.audit.discriminant import Features
from fedsink.audit.finding import Finding, compare
from fedsink.clients.privatize_once import privatize
from fedsink.clients.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_MECHANISMS, Key, Stream, local_mechanism
from fedsink.protocol.privatize_once import LocalPlan

Privatizer = Callable[[Shard, LocalPlan, Callable[[str], Stream]], tuple[Tensor, Tensor]]


def line_plan(mechanism: str, epsilon: float, delta: float) -> LocalPlan:
    """The mechanism on the interval [−1, 1]: Δ₁ = Δ₂ = 2, attained by its two ends.

    Raises:
        ConfigError: If the mechanism is not one of local mode's.
        PrivacyError: If ε or δ is out of range.
    """
    if mechanism not in LOCAL_MECHANISMS:
        known = " or ".join(LOCAL_MECHANISMS)
        raise ConfigError(f"mechanism must be {known}, received {mechanism!r}.")
    interval = PointBall(local_mechanism(mechanism).norm, radius=1.0, size=1)
    return LocalPlan(mechanism, interval, epsilon, delta)


def audit_local(
    plan: LocalPlan,
    key: Key,
    *,
    trials: int,
    confidence: float,
    release: Privatizer = privatize,
) -> list[Finding]:
    """Tell uploads of the record +1 from uploads of −1: alone, and beside a record that is known.

    Alone, the largest values decide: the tightest audit of one release. Beside a known record
    noise that was used twice cancels in the difference of the two values. A Gaussian mechanism
    is also held against its exact trade-off.

    Guarantees:
        - The claim is the ε of exactly the plan that was run, replace-one.
        - Threshold and direction are chosen on uploads that the bound does not count.

    Args:
        plan: From `line_plan`.
        key: Source of every random number; client numbers below 4·trials are used.
        trials: Uploads of each of the two records; half of them fit the distinguisher.
        confidence: Of each bound, in (0, 1).
        release: The client's mechanism.

    Raises:
        ConfigError: If there are fewer than eight trials.
    """
    check_trials(trials)

    def uploads(records: list[float], first: int) -> Features:
        return _uploads(records, plan, release, key, range(first, first + trials))

    alone = uploads([1.0], 0), uploads([-1.0], trials)
    beside = (
        _sum_and_distance(uploads([1.0, 1.0], 2 * trials)),
        _sum_and_distance(uploads([-1.0, 1.0], 3 * trials)),
    )
    return [
        finding
        for records, pair, gaussian in (
            ("one record", alone, plan.image_mechanism.gaussian_trade_off),
            ("two records", beside, False),
        )
        for finding in compare(
            *pair,
            audited=f"{2 * trials} uploads of {records}",
            claim=plan.total_epsilon,
            delta=plan.delta,
            confidence=confidence,
            gaussian=gaussian,
        )
    ]


def _uploads(
    records: list[float], plan: LocalPlan, release: Privatizer, key: Key, clients: range
) -> Features:
    """The values of independent uploads, (clients, records)."""
    shard = points(torch.tensor(records).unsqueeze(1))
    values = [
        release(shard, plan, partial(key.stream, client=client, round=0))[0].flatten()
        for client in clients
    ]
    return np.asarray(torch.stack(values).to(torch.float64).numpy())


def _sum_and_distance(values: Features) -> Features:
    """All that two values say: an upload has no order."""
    return np.stack([values.sum(1), np.abs(values[:, 0] - values[:, 1])], axis=1)
