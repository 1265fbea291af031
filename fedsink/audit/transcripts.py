"""Central mode, audited by repetition: thousands of whole runs with and without one canary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedsink.audit.canary import Canary, Release, check_transcripts, replies
from fedsink.audit.discriminant import Features
from fedsink.audit.finding import Finding, compare
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.clients.shard import Shard
from fedsink.privacy import Key, PrivacyPlan


def audit_transcripts(
    plan: PrivacyPlan,
    key: Key,
    *,
    trials: int,
    confidence: float,
    accountant: str = "pld",
    release: Release = client_gradient,
) -> list[Finding]:
    """Tell runs of the plan with a canary from runs without, at the plan's rate and at rate 1.

    At rate 1 the T rounds are one Gaussian mechanism of μ = √T/σ, so they are also held against
    its exact trade-off, which finds far smaller faults than (ε, δ) can: the second Finding there.
    A violation of it refutes the plan whatever the mechanism really is.

    Guarantees:
        - The claim is the ε of exactly the plan that was run, from its accountant.
        - Threshold and direction are chosen on transcripts that the bound does not count.

    Args:
        plan: With the joint schedule.
        key: Source of every random number; client numbers below 4·trials are used.
        trials: Runs with, and as many without the canary; half of them fit the distinguisher.
        confidence: Of each bound, in (0, 1).
        accountant: That states the claims.
        release: The client's mechanism.

    Raises:
        ConfigError: If the plan has a class schedule or there are fewer than eight trials.
    """
    check_transcripts(plan, trials)
    findings: list[Finding] = []
    for rate in dict.fromkeys([plan.rate, 1.0]):
        audited = replace(plan, rate=rate)
        canary, first = Canary(audited), 0 if rate == plan.rate else 2 * trials
        present = _transcripts(canary, canary.present, release, key, first, trials)
        absent = _transcripts(canary, canary.absent, release, key, first + trials, trials)
        findings += compare(
            present,
            absent,
            audited=f"{2 * trials} transcripts, q = {rate:g}",
            claim=audited.epsilon(accountant),
            delta=plan.delta,
            confidence=confidence,
            gaussian=rate == 1.0,
        )
    return findings


def _transcripts(
    canary: Canary, shard: Shard, release: Release, key: Key, first: int, trials: int
) -> Features:
    """The replies of `trials` independent runs, (trials, 2T)."""
    requests = canary.requests()
    runs = [
        torch.cat(replies(requests, shard, release, key, first + trial)).flatten()
        for trial in range(trials)
    ]
    return np.asarray(torch.stack(runs).to(torch.float64).numpy())
