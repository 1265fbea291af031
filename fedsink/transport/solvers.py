"""Sinkhorn's algorithm, and the solvers that a configuration names and a loss takes.

`ConvergedSolver` iterates to a tolerance, `AnnealedSolver` runs the published schedule, and
`FixedSolver` does either in an amount of work that private points cannot change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.annealed import AnnealedSolver, anneal, epsilon_schedule, follow, warm_start
from fedsink.transport.iterations import (
    SinkhornState,
    SoftMinimum,
    iterate_potentials,
    iterate_scalings,
    iterate_symmetric,
)
from fedsink.transport.problem import Points, Problem, Solution, Solver, Weights, bounded, prepare

Domain = Literal["auto", "log", "exp"]

# Largest cost whose sum over all pairs still fits into float32.
_LARGEST_COST = 1e24


def solve(
    cost_matrix: Tensor,
    lam: float,
    max_iterations: int = 1000,
    tolerance: float = 1e-3,
    *,
    log_a: Weights = None,
    log_b: Weights = None,
    domain: Domain = "auto",
    symmetric: bool = False,
) -> Solution:
    """Returns potentials of W(a, b) = min_π ⟨C, π⟩ + λ·KL(π ‖ a⊗b) for each problem.

    One iteration is f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ), then the same for g, so that
    columns hold exactly and only rows are violated (Cuturi 2013; Peyré and Cuturi 2019,
    eq. 4.43). It stops once Σ_i |Σ_j P_ij − a_i| ≤ tolerance, or after max_iterations.
    Problems of one batch do not influence each other, beyond the rounding of floats: each begins as
    it would alone, and keeps the potentials at which it met the tolerance. No gradient is recorded;
    `losses` has those of W.

    Resolution: potentials are rounded by ε·max(|f|, |g|, λ) with ε = 1.2e-7 (float32) or
    2.2e-16 (float64). Where that exceeds the tolerance times λ no marginal error as small can be
    seen, and where it exceeds the tolerance times max |C| the value is as far off: `converged` is
    False, though iterations may stop. Use float64 for such λ.

    Args:
        cost_matrix: C, (..., n, m), float32 or float64, finite.
        lam: λ > 0, in units of cost.
        max_iterations: most iterations, ≥ 1.
        tolerance: on the L1 norm of the row violation; 0 runs exactly max_iterations.
        log_a: log-weights (..., n) of the source points, −∞ for padding; uniform if None.
            Padding gives the result of the problem without it, and potentials 0.
        log_b: log-weights (..., m) of the target points, like log_a.
        domain: "exp" multiplies by a kernel (fast, for λ ≥ range of C / 1000; it continues
            in the log domain where it would lose precision), "log" works for every λ, and begins
            with a falling λ where λ is below that limit; "auto" chooses by λ.
        symmetric: True for a measure with itself, C = Cᵀ and a = b: then g = f, and an iteration is
            f ← f/2 − λ/2·LSE_j(log a_j + (f_j − C_ij)/λ), in the log domain.

    Raises:
        ValueError: for invalid input, with the value received.
    """
    if max_iterations < 1 or not tolerance >= 0.0:
        raise ValueError(
            f"At least 1 iteration and a tolerance ≥ 0 are needed, got max_iterations="
            f"{max_iterations} and tolerance={tolerance}."
        )
    if domain not in ("auto", "log", "exp"):
        raise ValueError(f'The domain must be "auto", "log" or "exp", got "{domain}".')
    problem = prepare(cost_matrix, lam, log_a, log_b)
    begins = [_beginning(problem.lam, span, domain) for span in problem.cost_range.tolist()]
    if symmetric:
        softmin, state = SoftMinimum(problem), SinkhornState.begin(problem)
        state = iterate_symmetric(softmin, state, max_iterations, tolerance)
    elif len(set(begins)) == 1:
        state = _iterated(problem, begins[0], max_iterations, tolerance)
    else:
        state = SinkhornState.begin(problem)
        for beginning in sorted(set(begins)):
            alike = [place for place, other in enumerate(begins) if other == beginning]
            indices = torch.tensor(alike, device=state.f.device)
            part = _iterated(problem.part(indices), beginning, max_iterations, tolerance)
            for name in ("f", "g", "iterations", "converged"):
                getattr(state, name)[indices] = getattr(part, name)
    free = problem.largest == 0.0  # then potentials of 0 are exact
    f, g = (values.masked_fill(free.unsqueeze(-1), 0.0) for values in (state.f, state.g))
    resolved = state.resolved(problem.lam, tolerance, problem.largest)
    return problem.solution(f, g, state.iterations, state.converged & (resolved | free))


_SCALINGS, _POTENTIALS = -1, 0


def _beginning(lam: float, cost_range: float, domain: Domain) -> int:
    """Returns how a problem begins: on scalings, on potentials, or by a schedule of this length."""
    large = lam * 1000.0 >= cost_range  # below, nearly every iteration on scalings would absorb
    if domain == "exp" or (domain == "auto" and large):
        return _SCALINGS
    return _POTENTIALS if large else len(epsilon_schedule(cost_range, lam, 0.5))


def _iterated(
    problem: Problem, beginning: int, max_iterations: int, tolerance: float
) -> SinkhornState:
    state = SinkhornState.begin(problem)
    if beginning == _SCALINGS:
        state = iterate_scalings(problem, state, max_iterations, tolerance)
    elif beginning != _POTENTIALS:
        state = warm_start(problem, max_iterations)
    if not state.finished:
        state = iterate_potentials(SoftMinimum(problem), state, max_iterations, tolerance)
    return state


@dataclass(frozen=True)
class ConvergedSolver:
    """`solve` with its options; a tolerance of 0 runs a fixed number of iterations.

    Attributes:
        max_iterations, tolerance, domain: those of `solve`.
    """

    max_iterations: int = 1000
    tolerance: float = 1e-3
    domain: Domain = "auto"

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        """Returns the converged solution; of the points it reads whether they are one cloud."""
        limits = self.max_iterations, self.tolerance
        symmetric = points[0] is points[1] and log_a is log_b
        return solve(
            cost, lam, *limits, log_a=log_a, log_b=log_b, domain=self.domain, symmetric=symmetric
        )


@dataclass(frozen=True)
class FixedSolver:
    """Sinkhorn in the log domain whose work depends only on public numbers and shapes.

    Private points change neither which operations run nor whether it raises: it does not read the
    costs (see `problem.bounded`) and does not stop early. A hundred iterations meet
    `ConvergedSolver`'s tolerance of 1e-3 where λ is 2 for costs around 40, and
    leave a gradient 6 to 10 % off at λ = 0.5 (scikit-learn's digits, 50 points against 120).

    Attributes:
        largest_cost: public bound on C.
        diameter: first value of the published schedule (`AnnealedSolver`, scaling ½); None for
            a schedule from `largest_cost` followed by iterations at λ.
        iterations: number of steps of the schedule from `largest_cost` and iterations at λ
            together; not read where there is a diameter.
    """

    largest_cost: float
    diameter: float | None = None
    iterations: int = 100

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        """Returns the potentials after the fixed work; the points are not read."""
        problem = bounded(cost, lam, log_a, log_b, self.largest_cost)
        if self.diameter is not None:
            return anneal(problem, [self.diameter] * len(problem.cost), scaling=0.5)
        state, softmin = SinkhornState.begin(problem), SoftMinimum(problem)
        schedules = [
            epsilon_schedule(span, problem.lam, 0.5) for span in problem.cost_range.tolist()
        ]
        if len(schedules[0]) < self.iterations:
            _, _, f, g = follow(softmin, schedules)
            state.update(f, g, len(schedules[0]))
        state = iterate_potentials(softmin, state, self.iterations, 0.0)
        return problem.solution(state.f, state.g, state.iterations, state.converged)


def fixed_solver(name: str, *, largest_cost: float, diameter: float) -> FixedSolver:
    """Returns the `FixedSolver` that replaces `solver_named(name)` for private points.

    Both are public bounds: `largest_cost` on the costs, and `diameter` on the distance of two
    points, first value of "annealed". Raises ConfigError for any other name than "converged", and
    for a largest cost beyond what float32 can sum.
    """
    solver_named(name)
    if not largest_cost <= _LARGEST_COST:
        raise ConfigError(
            f"Costs up to {largest_cost:g} are beyond float32's range, the limit is "
            f"{_LARGEST_COST:g}: rescale the points."
        )
    return FixedSolver(largest_cost, diameter if name == "annealed" else None)


def solver_named(name: str) -> Solver:
    """Returns the solver called "converged" or "annealed", with its default options.

    Raises ConfigError for any other name.
    """
    if name == "converged":
        return ConvergedSolver()
    if name == "annealed":
        return AnnealedSolver()
    raise ConfigError(f'Unknown solver "{name}": choose one of converged, annealed.')
