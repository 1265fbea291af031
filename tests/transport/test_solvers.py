from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fedsink.errors import ConfigError
from fedsink.transport import (
    AnnealedSolver,
    ConvergedSolver,
    FixedSolver,
    Mixed,
    Solver,
    fixed_solver,
    solver_named,
    transport_gradient,
)

from ..support.clouds import cloud

Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]
LAM = 2.0
SOLVERS = [FixedSolver(400.0), FixedSolver(400.0, diameter=30.0)]


def points(n: int, seed: int) -> Tensor:
    return cloud(n, 5, seed=seed, dtype=torch.float32)


def gradient(solver: Solver, y: Tensor, log_b: Tensor | None = None) -> Tensor:
    x = points(8, 1)
    return transport_gradient(x, y, Mixed(0.5), LAM, log_b=log_b, solver=solver).gradient


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_a_fixed_solver_converges_like_the_converged_one() -> None:
    y = points(20, 2)
    exact = gradient(ConvergedSolver(20_000, 1e-7, "log"), y)
    assert distance(gradient(FixedSolver(400.0), y), exact) < 1e-3
    assert distance(gradient(FixedSolver(400.0, iterations=12), y), exact) > 1e-3


def test_a_fixed_solver_with_a_diameter_is_the_annealed_one() -> None:
    y = points(20, 2)
    ours = gradient(FixedSolver(400.0, diameter=30.0), y)
    assert distance(ours, gradient(AnnealedSolver(diameter=30.0), y)) < 1e-5
    assert distance(ours, gradient(ConvergedSolver(), y)) > 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_padding_gives_the_result_without_it(solver: FixedSolver) -> None:
    y = points(20, 2)
    log_b = torch.full((31,), -math.inf)
    log_b[:20] = -math.log(20)
    padded = torch.cat((y, torch.zeros(11, 5)))
    torch.testing.assert_close(gradient(solver, padded, log_b), gradient(solver, y))


@pytest.mark.medium
@pytest.mark.parametrize("solver", SOLVERS)
def test_its_work_does_not_depend_on_the_points_or_on_how_many_are_real(
    operations: Operations, solver: FixedSolver
) -> None:
    def work(solver: Solver, scale: float, real: int) -> list[tuple[Any, ...]]:
        log_b = torch.full((20,), -math.inf)
        log_b[:real] = -math.log(real)
        return operations(lambda: gradient(solver, scale * points(20, 2), log_b))

    first = work(solver, 1.0, 20)
    assert all(work(solver, scale, real) == first for scale, real in ((0.0, 20), (1, 1), (9.0, 7)))
    ordinary = ConvergedSolver()
    assert work(ordinary, 1.0, 20) != work(ordinary, 1.0, 7)  # so this test can fail


@pytest.mark.medium
@pytest.mark.parametrize("solver", SOLVERS)
def test_its_time_does_not_depend_on_the_costs(solver: FixedSolver) -> None:
    """Without the floor of `problem.bounded` spread costs took 2.5 and 6.3 times as long."""
    costs = [torch.zeros(60, 200), 400.0 * torch.rand(60, 200)]
    for runs in (15, 60):  # a busy machine gets a second, longer try
        taken: list[list[float]] = [[], []]
        for _ in range(runs):
            for cost, seconds in zip(costs, taken, strict=True):
                start = time.process_time()
                _ = solver(cost, 0.05, points=(cost, cost)).plan
                seconds.append(time.process_time() - start)
        medians = [statistics.median(seconds) for seconds in taken]
        if max(medians) < 1.4 * min(medians):
            return
    pytest.fail(f"zero costs take {medians[0]:g} s, spread ones {medians[1]:g} s")


def test_problems_of_a_batch_are_solved_side_by_side() -> None:
    x, y = torch.stack((points(4, 1), points(4, 2))), torch.stack((points(6, 3), points(6, 4)))
    for solver in SOLVERS:
        both = transport_gradient(x, y, Mixed(0.0), LAM, solver=solver)
        for k in range(2):
            alone = transport_gradient(x[k], y[k], Mixed(0.0), LAM, solver=solver)
            torch.testing.assert_close(both.gradient[k], alone.gradient)
        assert both.solution.iterations.shape == (2,)
        assert not bool(both.solution.converged.any())  # never looked at


@pytest.mark.parametrize(
    ("lam", "largest", "message"),
    [
        (1e-31, 1.0, "λ must lie in 1e-30..1e30 for a fixed amount of work, got 1e-31"),
        (math.inf, 1.0, "got inf"),
        (math.nan, 1.0, "got nan"),
        (1e-3, 1e20, "λ = 0.001 is too small for costs up to 1e.20 in torch.float32"),
    ],
)
def test_what_it_refuses_it_refuses_for_its_public_numbers(
    lam: float, largest: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FixedSolver(largest)(torch.zeros(2, 2), lam, points=(points(2, 1), points(2, 2)))


def test_a_fixed_solver_with_a_diameter_reads_no_value() -> None:
    x, y = points(8, 1), points(11, 2)
    matrix = Mixed(0.5)(x, y)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        cost = mode.from_tensor(matrix)
        assert FixedSolver(900.0, 30.0)(cost, LAM, points=(x, y)).plan.shape == (8, 11)
        with pytest.raises(DataDependentOutputException):
            ConvergedSolver()(cost, LAM, points=(x, y))


def test_solvers_by_name() -> None:
    assert isinstance(solver_named("converged"), ConvergedSolver)
    assert isinstance(solver_named("annealed"), AnnealedSolver)
    assert fixed_solver("converged", largest_cost=3.0, diameter=2.0) == FixedSolver(3.0)
    assert fixed_solver("annealed", largest_cost=3.0, diameter=2.0) == FixedSolver(3.0, 2.0)
    for call in (solver_named, lambda name: fixed_solver(name, largest_cost=1.0, diameter=1.0)):
        with pytest.raises(ConfigError, match='Unknown solver "exact": choose one of converged'):
            call("exact")


@pytest.mark.parametrize("largest", [1e25, math.inf, math.nan])
def test_costs_beyond_float32_are_refused(largest: float) -> None:
    with pytest.raises(ConfigError, match=r"beyond float32's range, the limit is 1e\+24"):
        fixed_solver("converged", largest_cost=largest, diameter=1.0)
