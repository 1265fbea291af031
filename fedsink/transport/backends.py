"""Transport problems solved by another library, with the same answers.

`native` is this package. `geomloss` runs GeomLoss' loop on the same costs and takes the plans from
its backpropagation, as a second opinion. `keops` reduces over a formula of the cost and never holds
n×m numbers, for problems beyond the memory of a GPU; KeOps writes and compiles code at the first
use of a formula, which takes some seconds and happens once on a machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsink.errors import BackendError, ConfigError
from fedsink.transport.annealed import AnnealedSolver, epsilon_schedule, follow
from fedsink.transport.costs import L1, GroundCost, Mixed, SquaredEuclidean
from fedsink.transport.iterations import SinkhornState, SoftMinimum, iterate_potentials
from fedsink.transport.problem import Points, Solution, Solver, Weights, prepare
from fedsink.transport.solvers import ConvergedSolver

NATIVE = "native"
BACKENDS = (NATIVE, "geomloss", "keops")


def by_backend(name: str, cost: GroundCost, solver: Solver) -> tuple[GroundCost, Solver]:
    """Returns the cost and solver of a backend that replace these two; they belong together.

    Raises:
        ConfigError: there is no such backend, or it does not have this cost or this solver.
    """
    if name == NATIVE:
        return cost, solver
    if name == "geomloss" and isinstance(solver, AnnealedSolver):
        return cost, GeomlossSolver(solver)
    if name == "geomloss":
        raise ConfigError(
            "backend=geomloss runs only the annealed schedule: set solver=annealed, or choose "
            "backend=native."
        )
    if name == "keops" and isinstance(solver, AnnealedSolver | ConvergedSolver):
        return Symbolic.of(cost), KeopsSolver(solver)
    if name == "keops":
        raise ConfigError("backend=keops has no solver of fixed work: choose backend=native.")
    raise ConfigError(f'Unknown backend "{name}": choose one of {", ".join(BACKENDS)}.')


def check_backend(name: str) -> None:
    """Solves a problem of one point, and raises BackendError if the library cannot run here."""
    point = torch.zeros(1, 1)
    cost, solver = by_backend(name, SquaredEuclidean(), AnnealedSolver())
    solver(cost(point, point), 1.0, points=(point, point))


@dataclass(frozen=True)
class GeomlossSolver:
    """GeomLoss' SamplesLoss (p = 1, blur = λ) on the same cost matrix, one problem at a time."""

    annealed: AnnealedSolver

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        problem = prepare(cost, lam, log_a, log_b)
        shape, weights = problem.batch_shape, (problem.log_a.exp(), problem.log_b.exp())
        starts = self.annealed.starts(points, log_a, log_b).expand(shape).reshape(-1).tolist()
        problems = zip(problem.cost, *weights, starts, strict=True)
        parts = [self._solve(matrix, lam, *rest) for matrix, *rest in problems]
        f, g, *plans = (torch.stack(values) for values in zip(*parts, strict=True))
        counts = [len(epsilon_schedule(start, lam, self.annealed.scaling)) for start in starts]
        steps = torch.tensor(counts, device=f.device)
        solution = problem.solution(f, g, steps, torch.zeros_like(steps, dtype=torch.bool))
        source, target = (plan.reshape(*shape, *plan.shape[1:]) for plan in plans)
        return replace(solution, plans=(source, target))

    def _solve(
        self, cost: Tensor, lam: float, a: Tensor, b: Tensor, diameter: float
    ) -> tuple[Tensor, ...]:
        """Returns f, g and the two plans of one problem, C (n, m)."""
        with library("geomloss", "the package geomloss"):
            from geomloss import SamplesLoss
        # GeomLoss calls `cost` for C and for its transpose; zeros mark the source, ones the target.
        source, target = cost.new_zeros(len(a), 1), cost.new_ones(len(b), 1)
        matrix, transposed = (c.clone().requires_grad_() for c in (cost, cost.mT))
        loss = SamplesLoss(
            "sinkhorn",
            p=1,
            blur=lam,
            scaling=self.annealed.scaling,
            diameter=diameter or lam,  # a cloud of one point: the schedule λ, λ
            debias=False,
            potentials=True,
            cost=lambda x, y: (transposed if bool(x.any()) else matrix).unsqueeze(0),
            backend="tensorized",
        )
        with torch.enable_grad():
            f, g = (values.reshape(-1) for values in loss(a, source, b, target))
            plans = torch.autograd.grad((a * f).sum() + (b * g).sum(), (matrix, transposed))
        return f.detach(), g.detach(), plans[0], plans[1].mT


@dataclass(frozen=True)
class Coupling:
    """A plan P_ij = exp((r_i + s_j − C_ij)/λ) by its r, (..., n), and s, (..., m)."""

    rows: Tensor
    columns: Tensor
    lam: float

    def transpose(self, *dims: int) -> Coupling:
        return Coupling(self.columns, self.rows, self.lam)


@dataclass(frozen=True)
class Symbolic:
    """c(x, y) = q‖x − y‖₂² + a‖x − y‖₁ as KeOps' formula, for `KeopsSolver` in place of C."""

    quadratic: float  # q, 0 or 1
    absolute: float  # a ≥ 0

    @classmethod
    def of(cls, cost: GroundCost) -> Symbolic:
        if isinstance(cost, L1):
            return cls(0.0, 1.0)
        if isinstance(cost, SquaredEuclidean | Mixed):
            return cls(1.0, getattr(cost, "m", 0.0))
        raise ConfigError(f"The keops backend has no formula of {cost}: choose backend=native.")

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """Returns C as a LazyTensor, (B, n, m, 1), for x (..., n, d) and y (..., m, d)."""
        difference = _difference(x, y)
        total = (difference**2).sum(-1) if self.quadratic else 0.0
        return total + self.absolute * difference.abs().sum(-1) if self.absolute else total

    def gradient(self, x: Tensor, y: Tensor, plan: Any, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij ∂ₓc(x_i, y_j), shape (..., n, d), for a `Coupling`."""
        difference = _difference(x, y)
        derivative = 2.0 * difference if self.quadratic else 0.0
        if self.absolute:
            derivative = derivative + self.absolute * difference.sign()
        rows = _variable(plan.rows.reshape(-1, plan.rows.shape[-1], 1, 1))
        columns = _variable(plan.columns.reshape(-1, 1, plan.columns.shape[-1], 1))
        weights = ((rows + columns - self(x, y)) / plan.lam).exp()
        return _reduced(weights * derivative, "sum", 2).reshape(*plan.rows.shape, -1)


class LazyMinimum(SoftMinimum):
    """Half-iterations by reductions over KeOps' formula of C, (B, n, m, 1)."""

    def __init__(self, formula: Any, log_a: Tensor, log_b: Tensor, lam: float) -> None:
        self.log_a, self.log_b, self.lam = log_a, log_b, lam
        self._formula = formula

    def _reduce(self, h: Tensor, lam: float | Tensor, dim: int) -> Tensor:
        inverse = torch.as_tensor(1.0 / lam, dtype=h.dtype, device=h.device).view(-1, 1, 1, 1)
        scores = _variable(h.unsqueeze(-1)) - self._formula * _variable(inverse)
        return _reduced(scores, "logsumexp", 3 + dim).squeeze(-1)


@dataclass(frozen=True)
class KeopsSolver:
    """The algorithm of another solver, on potentials and from zero, for a `Symbolic` cost."""

    solver: AnnealedSolver | ConvergedSolver  # whose `domain` is not read

    def __call__(
        self, cost: Any, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        x, y = points
        shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        log_a, log_b = _finite_weights(log_a, x, shape), _finite_weights(log_b, y, shape)
        a, b = (weights.reshape(-1, weights.shape[-1]) for weights in (log_a, log_b))
        softmin = LazyMinimum(cost, a, b, lam)
        state = SinkhornState.begin(softmin)
        if isinstance(self.solver, AnnealedSolver):
            starts = self.solver.starts(points, log_a, log_b).expand(shape).reshape(-1).tolist()
            schedules = [epsilon_schedule(start, lam, self.solver.scaling) for start in starts]
            f_before, g_before, state.f, state.g = follow(softmin, schedules)
            state.iterations += torch.tensor([len(values) for values in schedules]).to(x.device)
        else:
            limits = self.solver.max_iterations, self.solver.tolerance
            state = iterate_potentials(softmin, state, *limits)
            state.converged &= state.resolved(lam, limits[1])
            f_before, g_before = state.f, state.g
        f, f_before = (values.view_as(log_a) for values in (state.f, f_before))
        g, g_before = (values.view_as(log_b) for values in (state.g, g_before))
        rows, columns = lam * log_a, lam * log_b
        return Solution(
            f, g, cost, lam, log_a, log_b,
            state.iterations.view(shape), state.converged.view(shape),
            plans=(
                Coupling(f + rows, g_before + columns, lam),
                Coupling(f_before + rows, g + columns, lam),
            ),
        )  # fmt: skip


def _finite_weights(given: Tensor | None, points: Tensor, shape: torch.Size) -> Tensor:
    """Returns log-weights (..., n), uniform if None, −∞ replaced by a finite number."""
    n = points.shape[-2]
    weights = points.new_full((n,), -math.log(n)) if given is None else given.detach().to(points)
    # −∞ would become NaN in KeOps' running maximum; this is as good as −∞ in either type.
    return weights.clamp(min=-1e18).expand(*shape, n)


def _difference(x: Tensor, y: Tensor) -> Any:
    """Returns x_i − y_j as a LazyTensor, (B, n, m, d)."""
    shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (points.detach().expand(*shape, *points.shape[-2:]) for points in (x, y))
    x, y = (points.reshape(-1, *points.shape[-2:]) for points in (x, y))
    return _variable(x.unsqueeze(-2)) - _variable(y.unsqueeze(-3))


def _variable(values: Tensor) -> Any:
    with library("keops", "the package pykeops and a C++ compiler (g++, or what CXX names)"):
        import pykeops
        from pykeops.torch import LazyTensor
    pykeops.set_verbose(False)
    return LazyTensor(values.contiguous())


def _reduced(formula: Any, reduction: str, dim: int) -> Tensor:
    # A formula that could not be compiled fails as a module that cannot be imported.
    with library("keops", "a C++ compiler (g++, or what CXX names)"):
        total: Tensor = getattr(formula, reduction)(dim=dim)
    return total


@contextmanager
def library(backend: str, needs: str) -> Iterator[None]:
    """Turns an ImportError into a BackendError, and prints the library's messages to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ImportError as error:
        raise BackendError(
            f"backend={backend} needs {needs}, and that is missing on this machine: install it, "
            "or choose backend=native."
        ) from error
