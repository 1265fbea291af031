from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # their processes import torch anew

PROBE = """
import sys
for missing in ("flwr", "ray", "hydra", "omegaconf"):
    sys.modules[missing] = None
import torch
from fedsink.clients.shard import Shard
from fedsink.models import build
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.objective import Objective
from fedsink.simulation.fused import FusedStep
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings

random = torch.Generator().manual_seed(0)
shards = [Shard(torch.rand(20, 1, 4, 4, generator=random), torch.arange(20) % 2) for _ in range(2)]
plan = PrivacyPlan(
    0.5, 1.0, 10, RecordClip(0.5), ClassSchedule(2), 1e-5, capacity=10, nominal_records=20
)
settings = DPSinkhornSettings(
    plan, Objective(lam=1.0, classes=2), SelfTermSettings(), {"name": "pixel", "shape": [1, 4, 4]},
    4, OptimizerSettings(0.01), 2, 20.0,
)
step = FusedStep(settings, build("mlp", (1, 4, 4), 2), shards, seed=0, server_key=b"server")
for _ in range(3):
    step.step()
print(step.metrics()["loss"] > 0)
"""


CLIENTS = """
import sys
for missing in ("flwr", "ray", "hydra", "omegaconf"):
    sys.modules[missing] = None
import torch
from tests.gpu.problem import cohort, parameter_case, privatized, requests_of, totals
cpu = torch.device("cpu")
print(totals(requests_of(2), cohort(2, cpu)).isfinite().all())
print(parameter_case("record", cpu).isfinite().all(), privatized(cpu)[0].isfinite().all())
"""


def test_clients_compute_where_flower_ray_and_hydra_are_not_installed() -> None:
    """What `make test-gpu` rests on."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", CLIENTS], capture_output=True, text=True, timeout=300, cwd=root
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tensor(True)"] * 3


def test_it_runs_where_flower_ray_and_hydra_are_not_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]
