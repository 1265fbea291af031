"""eps=inf: the same rounds with neither clip nor noise, and a folder that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import ConfigError
from fedsink.privacy import UnprotectedPlan
from fedsink.simulation.simulated_run import resume, start
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings

from .conftest import Compose, Configure, write_policy

COMMON = ("eps=inf", "seed=3", "clients=2", "rounds=4", "capacity=auto")


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


@pytest.mark.medium
def test_a_run_says_that_nothing_is_protected(composed: Compose, tmp_path: Path) -> None:
    folder = start(composed(*COMMON, "engine=local"), tmp_path / "run")
    assert read(folder, "privacy.json")["protected"] == "Nothing."
    assert read(folder, "privacy.json")["epsilon"] is None
    assert read(folder, "metrics.json")["epsilon"] is None
    lines = [json.loads(s) for s in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["round"] == 4
    assert all(line["epsilon"] is None and "signal_to_noise" not in line for line in lines)
    assert resume(folder) == folder


@pytest.mark.medium
def test_secret_draws_need_no_ledger(composed: Compose, tmp_path: Path) -> None:
    folder = start(composed("eps=inf", "clip=batch", "rounds=2"), tmp_path / "run")
    assert read(folder, "privacy.json")["clip"] == "none"


@pytest.mark.medium
def test_noise_is_all_that_is_missing(configured: Configure) -> None:
    """Rate, rounds and schedule are those of the run with noise."""
    strategies = [configured(*more).server.strategy for more in ((), ("eps=inf",))]
    assert all(isinstance(s, DPSinkhornSettings) for s in strategies)
    noised, plain = (s.plan for s in strategies if isinstance(s, DPSinkhornSettings))
    assert isinstance(plain, UnprotectedPlan)
    for name in ("rate", "rounds", "schedule", "uses", "capacity"):
        assert getattr(plain, name) == getattr(noised, name)
    assert plain.clip.name == noised.clip.name


@pytest.mark.medium
def test_a_policy_is_refused_before_anything_runs(configured: Configure, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a policy always refuses it"):
        configured("eps=inf", f"policy={write_policy(tmp_path)}")
