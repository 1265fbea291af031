"""Solvers as values: what a configuration names and a loss takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.problem import bounded
from fedsink.transport.solution import Solution
from fedsink.transport.solvers import log_domain
from fedsink.transport.solvers.annealed import (
    anneal,
    anneal_unseen,
    annealed,
    bounding_diameter,
    warm_start,
)
from fedsink.transport.solvers.sinkhorn import Domain, solve


class Solver(Protocol):
    """Anything that solves for potentials, given the cost matrix and the points behind it."""

    def __call__(
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the solution of W(a, b) with C = cost_matrix and λ = lam."""
        ...


@dataclass(frozen=True)
class ConvergedSolver:
    """`sinkhorn.solve` with its options; a tolerance of 0 runs a fixed number of iterations."""

    max_iterations: int = 1000
    tolerance: float = 1e-3
    domain: Domain = "auto"

    def unseen(self, largest_cost: float) -> UnseenConvergedSolver:
        """The same without a look at a value from the host, for costs up to a public bound."""
        return UnseenConvergedSolver(largest_cost, self.max_iterations, self.tolerance)

    def __call__(
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the converged solution; the points are not looked at."""
        return solve(
            cost_matrix,
            lam,
            log_a=log_a,
            log_b=log_b,
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
            domain=self.domain,
        )


@dataclass(frozen=True)
class AnnealedSolver:
    """`annealed.annealed` from the points' bounding diameter, or from a public one."""

    scaling: float = 0.5
    diameter: float | None = None

    def __call__(
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the potentials at the end of the schedule."""
        diameter: float | Tensor
        if self.diameter is None:
            diameter = bounding_diameter(*points, log_a, log_b)
        else:
            diameter = self.diameter
        return annealed(
            cost_matrix, lam, diameter=diameter, scaling=self.scaling, log_a=log_a, log_b=log_b
        )


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
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the potentials after the fixed work; the points are not looked at."""
        problem = bounded(cost_matrix, lam, log_a, log_b, self.largest_cost)
        if self.diameter is not None:
            return anneal(problem, [self.diameter] * len(problem.cost), scaling=0.5)
        progress = warm_start(problem, self.iterations)
        progress = log_domain.iterate(problem, progress, self.iterations, 0.0, check_every=1)
        return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)


@dataclass(frozen=True)
class UnseenConvergedSolver:
    """`ConvergedSolver` in the log domain without a look at a value from the host.

    All iterations run; a problem keeps the potentials at which it met the tolerance. It begins at
    zero also where `solve` would begin at an annealed schedule. For CUDA graphs.

    Attributes:
        largest_cost: public bound on C.
        max_iterations, tolerance: of the `ConvergedSolver`.
    """

    largest_cost: float
    max_iterations: int = 1000
    tolerance: float = 1e-3

    def __call__(
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the converged solution; the points are not looked at."""
        problem = bounded(cost_matrix, lam, log_a, log_b, self.largest_cost)
        progress = log_domain.iterate_unseen(problem, self.max_iterations, self.tolerance)
        return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)


@dataclass(frozen=True)
class UnseenAnnealedSolver:
    """`AnnealedSolver` at scaling ½ without a look at a value from the host. For CUDA graphs.

    Attributes:
        widest: public bound on the distance of two points.
        everywhere: begin every schedule there, instead of at each problem's bounding diameter.
    """

    widest: float
    everywhere: bool = False

    def __call__(
        self,
        cost_matrix: Tensor,
        lam: float,
        *,
        points: tuple[Tensor, Tensor],
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> Solution:
        """Return the potentials at the end of the schedules."""
        problem = bounded(cost_matrix, lam, log_a, log_b, self.widest**2)
        if self.everywhere:
            diameters = problem.cost.new_full(problem.cost.shape[:1], self.widest)
        else:
            diameters = bounding_diameter(*points, log_a, log_b).reshape(-1)
        return anneal_unseen(problem, diameters, self.widest)


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
