"""The laws behind docs/notebook/allocation.md, against the shipped accountant and a simulation."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "random_allocation.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("random_allocation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("q", "rounds", "sigma"), [(0.2, 300, 1.9), (0.2, 300, 13.0)])
def test_poisson_sampling_reads_what_the_accountant_reads(
    script: ModuleType, q: float, rounds: int, sigma: float
) -> None:
    plan = PrivacyPlan(q, sigma, rounds, RecordClip(1.0), JointSchedule(), 1e-5)
    law = script.poisson(sigma, q, script._step(q, sigma, rounds))
    assert script.epsilon(law, rounds, 1e-5) == pytest.approx(plan.epsilon("pld"), rel=2e-3)


def test_allocation_of_one_block_has_the_simulated_delta(script: ModuleType) -> None:
    sigma, t, delta = 1.5, 5, 1e-2
    eps = script.epsilon(script.allocation(sigma, t, script._step(0.2, sigma, t)), 1, delta)
    x = np.random.Generator(np.random.PCG64(0)).normal(size=(400_000, t)) * sigma
    s = np.exp((x - 0.5) / sigma**2).mean(1)  # under "without"; "with" has the density S
    excess = np.maximum(s - math.exp(eps), 0.0)
    back = np.maximum(1.0 - math.exp(eps) * s, 0.0)
    larger = max(excess, back, key=lambda values: float(values.mean()))
    error = float(larger.std()) / math.sqrt(len(s))
    assert abs(float(larger.mean()) - delta) < 5 * error
