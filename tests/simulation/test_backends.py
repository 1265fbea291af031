"""`strategy.backend` through configuration and engines: libraries train the same generator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedsink.simulation.simulated_run import start
from fedsink.transport import backends

from ..support.compiler import needs_compiler
from .conftest import Compose

# Without noise, so that only the library's result remains, and with steps in proportion to
# the gradient: Adam's first ones are as long for a gradient of rounding errors.
SMALL = (
    "generator.hidden=[16]", "seed=0", "rounds=4", "strategy.optimizer.name=sgd",
    "strategy.optimizer.warmup=0",
)  # fmt: skip
CENTRAL = (
    *SMALL, "strategy.optimizer.lr=0.01", "strategy.solver=annealed", "clip=batch", "eps=inf",
)  # fmt: skip
PUBLISHED = ("strategy.self_term=semi_debiased", "strategy.schedule=joint", "strategy.m=1")
LOCAL = (*SMALL, "strategy.optimizer.lr=0.5", "mode=ldp", "strategy.solver=annealed")
RUNS = {
    "class by class": CENTRAL,
    "published": (*CENTRAL, *PUBLISHED),
    "L1": (*CENTRAL, "strategy.cost=l1"),
    "weights": ("strategy=parameter_gradient", *CENTRAL),
    "local": LOCAL,
    "local, debiased": (*LOCAL, "mechanism=laplace", "strategy.loss=debiased"),
}
TOLERANCE = 1e-5


def outcome(composed: Compose, folder: Path, *overrides: str) -> tuple[list[float], torch.Tensor]:
    """Losses by round, and the generator's weights."""
    start(composed(*overrides), folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    weights = load_file(folder / "generator.safetensors")
    return [json.loads(line)["loss"] for line in lines], torch.cat(
        [weights[name].flatten() for name in sorted(weights)]
    )


def agree(composed: Compose, folder: Path, backend: str, *overrides: str) -> None:
    """The run of a library has the losses and the generator of the native one."""
    expected = outcome(composed, folder / "native", *overrides)
    losses, weights = outcome(composed, folder / backend, *overrides, f"strategy.backend={backend}")
    assert losses == pytest.approx(expected[0], rel=TOLERANCE)
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=TOLERANCE)


@pytest.mark.medium
@pytest.mark.quick("local")
@pytest.mark.parametrize("name", RUNS)
def test_the_tolerance_would_show_another_algorithm(
    composed: Compose, tmp_path: Path, name: str
) -> None:
    losses, weights = outcome(composed, tmp_path / "annealed", *RUNS[name])
    other = outcome(composed, tmp_path / "converged", *RUNS[name], "strategy.solver=converged")
    assert losses != pytest.approx(other[0], rel=10 * TOLERANCE)
    assert float((weights - other[1]).abs().max()) > 10 * TOLERANCE


@pytest.mark.medium
@pytest.mark.quick("published", "local")
@pytest.mark.parametrize("name", RUNS)
def test_geomloss_trains_the_native_generator(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    solve, calls = backends.GeomlossSolver.__call__, []
    monkeypatch.setattr(
        backends.GeomlossSolver, "__call__", lambda *a, **k: calls.append(1) or solve(*a, **k)
    )
    agree(composed, tmp_path, "geomloss", *RUNS[name])
    # Two clients and the self term in each of four rounds; one problem a step in local mode.
    assert len(calls) >= (4 if "local" in name else 8)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_keops_trains_the_native_generator(composed: Compose, tmp_path: Path, name: str) -> None:
    agree(composed, tmp_path, "keops", *RUNS[name])


@needs_compiler
@pytest.mark.slow
def test_keops_iterates_to_the_tolerance_of_local_mode(composed: Compose, tmp_path: Path) -> None:
    """From another start than the native loop, so that both must be at the optimum."""
    overrides = ("strategy.solver=converged", "strategy.tolerance=1e-7")
    agree(composed, tmp_path, "keops", *LOCAL, *overrides, "strategy.max_iterations=4000")
