"""The laws behind docs/notebook/central.md, against the shipped accountant and a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip

Script = Callable[[str], Any]


@pytest.mark.medium
@pytest.mark.parametrize(("q", "rounds", "sigma"), [(0.2, 300, 1.9), (0.2, 300, 13.0)])
def test_poisson_sampling_reads_what_the_accountant_reads(
    script: Script, q: float, rounds: int, sigma: float
) -> None:
    laws = script("random_allocation")
    plan = PrivacyPlan(q, sigma, rounds, RecordClip(1.0), JointSchedule(), 1e-5)
    law = laws.poisson(sigma, q, laws._step(q, sigma, rounds))
    assert laws.epsilon(law, rounds, 1e-5) == pytest.approx(plan.epsilon("pld"), rel=2e-3)


@pytest.mark.medium
def test_allocation_of_one_block_has_the_simulated_delta(script: Script) -> None:
    laws = script("random_allocation")
    sigma, t, delta = 1.5, 5, 1e-2
    eps = laws.epsilon(laws.allocation(sigma, t, laws._step(0.2, sigma, t)), 1, delta)
    x = np.random.Generator(np.random.PCG64(0)).normal(size=(400_000, t)) * sigma
    s = np.exp((x - 0.5) / sigma**2).mean(1)  # under "without"; "with" has the density S
    excess = np.maximum(s - math.exp(eps), 0.0)
    back = np.maximum(1.0 - math.exp(eps) * s, 0.0)
    larger = max(excess, back, key=lambda values: float(values.mean()))
    error = float(larger.std()) / math.sqrt(len(s))
    assert abs(float(larger.mean()) - delta) < 5 * error
