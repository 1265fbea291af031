"""Solvers as values: what a configuration names and a loss takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.annealed import annealed, bounding_diameter
from fedsink.transport.sinkhorn import Domain, solve
from fedsink.transport.solution import Solution


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


def solver_named(name: str) -> Solver:
    """Return the solver called "converged" or "annealed", with its default options.

    Raises ConfigError for any other name.
    """
    if name == "converged":
        return ConvergedSolver()
    if name == "annealed":
        return AnnealedSolver()
    raise ConfigError(f'Unknown solver "{name}": choose one of converged, annealed.')
