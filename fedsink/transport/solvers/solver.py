"""Sinkhorn's algorithm, and solvers as values: what a configuration names and a loss takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.problem import bounded, prepare
from fedsink.transport.solution import Solution
from fedsink.transport.solvers import exp_domain, log_domain
from fedsink.transport.solvers.annealed import (
    anneal,
    anneal_unseen,
    annealed,
    bounding_diameter,
    warm_start,
)
from fedsink.transport.solvers.log_domain import Progress, SoftMinimum

Domain = Literal["auto", "log", "exp"]
Points = tuple[Tensor, Tensor]
"""x (..., n, d) and y (..., m, d)."""
Given = Tensor | None
"""Log-weights (..., n), −∞ for padding; uniform if None."""


class Solver(Protocol):
    """Anything that solves for potentials, given the cost matrix and the points behind it."""

    def __call__(
        self, cost: Tensor, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the solution of W(a, b) for a cost matrix C (..., n, m) and λ = lam."""
        ...


def solve(
    cost_matrix: Tensor,
    lam: float,
    max_iterations: int = 1000,
    tolerance: float = 1e-3,
    *,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    domain: Domain = "auto",
) -> Solution:
    """Return potentials of W(a, b) = min_π ⟨C, π⟩ + λ·KL(π ‖ a⊗b) for each problem.

    One iteration is f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ), then the same for g, so that
    columns hold exactly and only rows are violated (Cuturi 2013; Peyré and Cuturi 2019,
    eq. 4.43). It stops once Σ_i |Σ_j P_ij − a_i| ≤ tolerance, or after max_iterations.
    Problems of one batch do not influence each other: each keeps the potentials at which it
    met the tolerance. No gradient is recorded; see `losses` for those of W.

    Resolution: potentials are rounded to the dtype, so marginal errors below ε·max|C|/λ with
    ε = 1.2e-7 (float32) or 2.2e-16 (float64) cannot be seen or removed; for such λ use float64.

    Args:
        cost_matrix: C, (..., n, m), float32 or float64, finite.
        lam: λ > 0, in units of cost.
        max_iterations: most iterations, ≥ 1.
        tolerance: on the L1 norm of the row violation; 0 runs exactly max_iterations.
        log_a: log-weights (..., n) of the source points, −∞ for padding; uniform if None.
            Padding gives the result of the problem without it, and potentials 0.
        log_b: the same for the target points, (..., m).
        domain: "exp" multiplies by a kernel (fast, for λ ≥ range of C / 1000; it continues
            in the log domain where it would lose precision), "log" works for every λ, and begins
            with an annealed schedule where λ is below that limit; "auto" chooses by λ.

    Raises:
        ValueError: for input as described that is invalid, with the value received.
    """
    if max_iterations < 1 or not tolerance >= 0.0:
        raise ValueError(
            f"At least 1 iteration and a tolerance ≥ 0 are needed, got max_iterations="
            f"{max_iterations} and tolerance={tolerance}."
        )
    if domain not in ("auto", "log", "exp"):
        raise ValueError(f'The domain must be "auto", "log" or "exp", got "{domain}".')
    problem = prepare(cost_matrix, lam, log_a, log_b)
    progress = Progress.begin(problem)
    supported = exp_domain.supports(problem)
    if domain == "exp" or (domain == "auto" and supported):
        progress = exp_domain.iterate(problem, progress, max_iterations, tolerance)
    elif not supported:
        progress = warm_start(problem, max_iterations)
    if not progress.finished:
        progress = log_domain.iterate(SoftMinimum(problem), progress, max_iterations, tolerance)
    return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)


@dataclass(frozen=True)
class ConvergedSolver:
    """`solve` with its options; a tolerance of 0 runs a fixed number of iterations.

    Attributes:
        max_iterations, tolerance, domain: of `solve`.
        largest_cost: public bound on C, for CUDA graphs: the host looks at no value then. All
            iterations run in the log domain, from zero also where `solve` would begin at an
            annealed schedule; a problem keeps the potentials at which it met the tolerance.
    """

    max_iterations: int = 1000
    tolerance: float = 1e-3
    domain: Domain = "auto"
    largest_cost: float | None = None

    def __call__(
        self, cost: Tensor, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the converged solution; the points are not looked at."""
        limits = self.max_iterations, self.tolerance
        if self.largest_cost is None:
            return solve(cost, lam, *limits, log_a=log_a, log_b=log_b, domain=self.domain)
        problem = bounded(cost, lam, log_a, log_b, self.largest_cost)
        progress = log_domain.iterate_unseen(problem, *limits)
        return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)


@dataclass(frozen=True)
class AnnealedSolver:
    """`annealed.annealed` from the points' bounding diameter, or from a public one.

    Attributes:
        scaling: ratio of successive values.
        diameter: the first value; None: of each problem its own.
        widest: public bound on the distance of two points, for CUDA graphs: the host looks at no
            value then, and the scaling is ½.
    """

    scaling: float = 0.5
    diameter: float | None = None
    widest: float | None = None

    def __call__(
        self, cost: Tensor, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the potentials at the end of the schedule."""
        starts = self.starts(points, log_a, log_b)
        if self.widest is None:
            return annealed(
                cost, lam, diameter=starts, scaling=self.scaling, log_a=log_a, log_b=log_b
            )
        problem = bounded(cost, lam, log_a, log_b, self.widest**2)
        return anneal_unseen(problem, starts.reshape(-1), self.widest)

    def starts(self, points: Points, log_a: Given, log_b: Given) -> Tensor:
        """The first value of each problem's schedule, (...), or of all schedules, ()."""
        if self.diameter is not None:
            return torch.tensor(self.diameter, dtype=torch.float64)
        return bounding_diameter(*points, log_a, log_b)


@dataclass(frozen=True)
class FixedSolver:
    """Sinkhorn in the log domain whose work depends on public numbers and shapes alone.

    For private points: which operations run, and whether it raises, is the same for all of them.
    It does not look at the costs (see `problem.bounded`), nor does it stop early: a hundred
    iterations meet `ConvergedSolver`'s tolerance of 1e-3 where λ is 2 for costs around 40, and
    leave a gradient 6 to 10 % off at λ = 0.5 (scikit-learn's digits, 50 points against 120).

    Attributes:
        largest_cost: public bound on C.
        diameter: where the published schedule (`annealed.annealed`, scaling ½) begins; None for
            a schedule from `largest_cost` followed by iterations at λ.
        iterations: those of both together, where `diameter` is None.
    """

    largest_cost: float
    diameter: float | None = None
    iterations: int = 100

    def __call__(
        self, cost: Tensor, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the potentials after the fixed work; the points are not looked at."""
        problem = bounded(cost, lam, log_a, log_b, self.largest_cost)
        if self.diameter is not None:
            return anneal(problem, [self.diameter] * len(problem.cost), scaling=0.5)
        progress = warm_start(problem, self.iterations)
        progress = log_domain.iterate(SoftMinimum(problem), progress, self.iterations, 0.0)
        return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)


# Costs up to here leave float32 room for the sums over all pairs that costs are checked by.
_LARGEST_COST = 1e24


def fixed_solver(name: str, *, largest_cost: float, diameter: float) -> FixedSolver:
    """Return the `FixedSolver` that stands for `solver_named(name)`.

    Args:
        name: "converged" or "annealed".
        largest_cost: public bound on the costs.
        diameter: public bound on the distance of two points, where "annealed" begins.

    Raises:
        ConfigError: for any other name, or a largest cost beyond what float32 can sum.
    """
    solver_named(name)
    if not largest_cost <= _LARGEST_COST:
        raise ConfigError(
            f"Costs up to {largest_cost:g} are beyond float32's range, the limit is "
            f"{_LARGEST_COST:g}: rescale the points."
        )
    return FixedSolver(largest_cost, diameter if name == "annealed" else None)


def solver_named(name: str) -> Solver:
    """Return the solver called "converged" or "annealed", with its default options.

    Raises ConfigError for any other name.
    """
    if name == "converged":
        return ConvergedSolver()
    if name == "annealed":
        return AnnealedSolver()
    raise ConfigError(f'Unknown solver "{name}": choose one of converged, annealed.')
