"""Central mode, audited in one run: many canaries, each in the shard by the toss of a coin."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedsink.audit.canary import (
    Canary,
    Release,
    points,
    replies,
    request,
    steering_potentials,
)
from fedsink.audit.discriminant import Features, inverse_times
from fedsink.audit.finding import Finding
from fedsink.audit.guesses import guesses_for, one_run_epsilon
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.errors import ConfigError
from fedsink.privacy import Key, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest


def audit_one_run(
    plan: PrivacyPlan,
    key: Key,
    *,
    canaries: int,
    confidence: float,
    accountant: str = "pld",
    release: Release = client_gradient,
) -> Finding:
    """Run the plan once at one client, with canaries on the axes of an m-dimensional space.

    Canary j contributes along axis j only, so its score is read there: the features are the
    replies of all rounds at that axis, and the scores w = C⁻¹s weigh them by their covariance over
    the canaries, which needs no knowledge of the coins. The highest scores are guessed to be in,
    the lowest to be out, as many as `guesses_for` fixed before the run.

    One client is the strongest audit: the server sees each client's reply, and a canary is in
    one shard. With `clip=batch` all canaries share one clip bound, so each of them moves the
    release by Δ·√(2/m) only and little can be proved.

    Args:
        plan: With the joint schedule.
        key: Source of every random number, the coins included; client number 0 is used.
        canaries: m ≥ 2.
        confidence: Of the bound, in (0, 1).
        accountant: That states the claim.
        release: The client's mechanism.

    Raises:
        ConfigError: If the plan has a class schedule or there are fewer than two canaries.
    """
    if plan.schedule.name != "joint":
        raise ConfigError("An audit runs the joint schedule: its canaries are used every round.")
    if canaries < 2:
        raise ConfigError(f"A one-run audit needs at least 2 canaries, received {canaries}.")
    per_canary = 1.0 if plan.clip.name == "record" else 0.5 * math.sqrt(2.0 / canaries)
    mu = per_canary * plan.rate * math.sqrt(plan.rounds) / plan.noise_multiplier
    guesses = guesses_for(mu, canaries=canaries, delta=plan.delta, confidence=confidence)

    coins = key.stream("coins", client=0, round=0).uniform(canaries) < 0.5
    distance = 4.0 * plan.clip.bound * (1.0 if plan.clip.name == "record" else math.sqrt(canaries))
    shard = points(-distance * torch.eye(canaries)[coins])
    gradients = replies(_requests(plan, canaries), shard, release, key, client=0)
    scores = _scores(plan, torch.cat(gradients))
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
        audited=f"1 run, {canaries} canaries, q = {plan.rate:g}",
        method=f"{correct} of {guesses} guesses",
        claim=plan.epsilon(accountant),
        bound=bound(correct, guesses),
        confidence=confidence,
        resolution=bound(canaries, canaries),
    )


def _requests(plan: PrivacyPlan, canaries: int) -> list[GradientRequest]:
    """Two rows at the origin: each canary pulls along its own axis, split by the potentials."""
    rows = torch.zeros(2, canaries)
    return [
        request(plan, number, rows, steering_potentials(v), torch.zeros_like(rows))
        for number, v in enumerate(Canary(plan).directions(), start=1)
    ]


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
