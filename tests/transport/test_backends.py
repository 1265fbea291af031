"""Other libraries give the same values, gradients and step counts as this package."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.errors import BackendError, ConfigError
from fedsink.transport import (
    L1,
    AnnealedSolver,
    ConvergedSolver,
    FixedSolver,
    GroundCost,
    Mixed,
    Solver,
    SquaredEuclidean,
    batch_gradients,
    by_backend,
    check_backend,
    self_gradient,
    transport_gradient,
)
from fedsink.transport.backends import KeopsSolver, Symbolic

from ..support.clouds import cloud
from ..support.compiler import needs_compiler

COSTS = [L1(), SquaredEuclidean(), Mixed(0.3)]
LAM = 0.3


def close(value: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)


def agree(backend: str, cost: GroundCost, solver: Solver, tolerance: float) -> None:
    """One problem, and a batch with padding, weights and schedules of several lengths."""
    x, y = cloud(9, 3, seed=1), cloud(3, 7, 3, seed=2) + torch.arange(3.0).reshape(3, 1, 1)
    log_a, log_b = cloud(9, seed=3).log_softmax(0), torch.full((3, 7), -math.log(5.0)).double()
    log_b[:, 1:3] = -math.inf
    library_cost, library = by_backend(backend, cost, solver)
    for weights, target in (({}, y[0]), ({"log_a": log_a, "log_b": log_b}, y)):
        ours = transport_gradient(x, target, cost, LAM, solver=solver, **weights)
        theirs = transport_gradient(x, target, library_cost, LAM, solver=library, **weights)
        close(theirs.value, ours.value, tolerance)
        close(theirs.gradient, ours.gradient, tolerance)
        close(theirs.solution.f, ours.solution.f, tolerance)
        if isinstance(solver, AnnealedSolver):
            assert torch.equal(theirs.solution.iterations, ours.solution.iterations)
            assert not bool(theirs.solution.converged.any())
    # Both sides of W(X[:5], X[2:7]).
    ours, theirs = (
        self_gradient(y, 5, c, LAM, solver=s) for c, s in ((cost, solver), (library_cost, library))
    )
    close(theirs.value, ours.value, tolerance)
    close(theirs.gradient, ours.gradient, tolerance)


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("scaling", [0.5, 0.8])
def test_geomloss_gives_the_native_answer(cost: GroundCost, scaling: float) -> None:
    agree("geomloss", cost, AnnealedSolver(scaling), 1e-12)
    agree("geomloss", cost, AnnealedSolver(scaling, diameter=20.0), 1e-12)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_keops_gives_the_native_answer(cost: GroundCost) -> None:
    agree("keops", cost, AnnealedSolver(), 1e-12)
    agree("keops", cost, AnnealedSolver(0.8, diameter=20.0), 1e-12)
    agree("keops", cost, ConvergedSolver(20_000, 1e-10, "log"), 1e-7)


@needs_compiler
@pytest.mark.slow
def test_keops_stops_at_the_tolerance() -> None:
    x, y = cloud(30, 2, seed=4), cloud(40, 2, seed=5)
    cost, solver = by_backend("keops", L1(), ConvergedSolver(500, 1e-3))
    solution = transport_gradient(x, y, cost, LAM, solver=solver).solution
    ours = transport_gradient(x, y, L1(), LAM, solver=ConvergedSolver(500, 1e-3, "log")).solution
    assert bool(solution.converged)
    assert int(solution.iterations) == int(ours.iterations) < 100
    close(solution.f, ours.f, 1e-10)


@pytest.mark.parametrize(
    "backend", ["geomloss", pytest.param("keops", marks=[pytest.mark.slow, needs_compiler])]
)
def test_clients_batches_with_empty_places_get_the_native_gradients(backend: str) -> None:
    x, y, public = cloud(6, 3, seed=6), cloud(4, 5, 3, seed=7), cloud(6, 3, seed=8)
    present = torch.arange(5) < torch.tensor([5, 2, 0, 1]).unsqueeze(-1)
    ours, theirs = (
        batch_gradients(x, y, public, present, cost, LAM, solver)
        for cost, solver in (by_backend(b, L1(), AnnealedSolver()) for b in ("native", backend))
    )
    close(theirs, ours, 1e-12)
    assert torch.equal(theirs[2], public)


def test_backends_by_name() -> None:
    cost, solver = L1(), AnnealedSolver()
    assert by_backend("native", cost, solver) == (cost, solver)
    assert by_backend("keops", cost, solver) == (Symbolic(0.0, 1.0), KeopsSolver(solver))
    for name, refused, message in (
        ("pot", solver, 'Unknown backend "pot": choose one of native, geomloss, keops'),
        ("geomloss", ConvergedSolver(), "geomloss runs only the annealed schedule: set solver=ann"),
        ("geomloss", FixedSolver(1.0), "geomloss runs only the annealed schedule"),
        ("keops", FixedSolver(1.0), "keops has no solver of fixed work"),
    ):
        with pytest.raises(ConfigError, match=message):
            by_backend(name, cost, refused)


def test_keops_refuses_a_cost_that_it_cannot_write_down() -> None:
    class Zero(GroundCost):
        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.zeros(len(x), len(y))

        def gradient(self, x: Tensor, y: Tensor, plan: Any, *, sparse: bool = False) -> Tensor:
            return torch.zeros_like(x)

    with pytest.raises(ConfigError, match=r"has no formula of .*: choose backend=native"):
        by_backend("keops", Zero(), AnnealedSolver())


@pytest.mark.parametrize(
    ("backend", "package", "message"),
    [
        (
            "geomloss",
            "geomloss",
            "backend=geomloss needs the package geomloss, and that is missing",
        ),
        ("keops", "pykeops", r"backend=keops needs the package pykeops and a C\+\+ compiler"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, backend: str, package: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendError, match=message) as caught:
        check_backend(backend)
    assert "\n" not in str(caught.value)
    check_backend("native")


CHECK = """
from fedsink.transport import check_backend
try:
    check_backend("keops")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_without_a_compiler_keops_says_so_in_one_sentence(tmp_path: Path) -> None:
    """In a new process: KeOps looks for a compiler when it is loaded."""
    environment = {
        **os.environ, "PATH": "/nonexistent", "CXX": "/nonexistent/c++",
        "KEOPS_CACHE_FOLDER": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True
    )
    assert done.stdout == (
        "BackendError backend=keops needs a C++ compiler (g++, or what CXX names), and that is "
        "missing on this machine: install it, or choose backend=native.\n"
    )
