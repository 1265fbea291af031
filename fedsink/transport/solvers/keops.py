"""Transport by KeOps: reductions over a formula of the cost, which never hold n×m numbers.

For problems beyond the memory of a GPU. KeOps writes and compiles code at the first use of a
formula, some seconds each and once on a machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsink.errors import BackendError, ConfigError
from fedsink.transport.costs import L1, Cost, Mixed, SquaredEuclidean
from fedsink.transport.solution import Solution
from fedsink.transport.solvers import log_domain
from fedsink.transport.solvers.annealed import epsilon_schedule, follow
from fedsink.transport.solvers.log_domain import Progress, SoftMinimum
from fedsink.transport.solvers.solver import AnnealedSolver, ConvergedSolver, Given, Points


@dataclass(frozen=True)
class Coupling:
    """A plan P_ij = exp((r_i + s_j − C_ij)/λ) by its r, (..., n), and s, (..., m)."""

    rows: Tensor
    columns: Tensor
    lam: float

    def transpose(self, *dims: int) -> Coupling:
        """The same with rows and columns exchanged."""
        return Coupling(self.columns, self.rows, self.lam)


@dataclass(frozen=True)
class Symbolic:
    """c(x, y) = q‖x − y‖₂² + a‖x − y‖₁ as a formula of KeOps, which `KeopsSolver` takes for C.

    Attributes:
        quadratic: q, 0 or 1.
        absolute: a ≥ 0.
    """

    quadratic: float
    absolute: float

    @classmethod
    def of(cls, cost: Cost) -> Symbolic:
        """The formula of a cost of this package; raises ConfigError for another."""
        if isinstance(cost, L1):
            return cls(0.0, 1.0)
        if isinstance(cost, SquaredEuclidean | Mixed):
            return cls(1.0, getattr(cost, "m", 0.0))
        raise ConfigError(f"The keops backend has no formula of {cost}: choose backend=native.")

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """Return C as a LazyTensor, (B, n, m, 1), for x (..., n, d) and y (..., m, d)."""
        difference = _difference(x, y)
        total = (difference**2).sum(-1) if self.quadratic else 0.0
        return total + self.absolute * difference.abs().sum(-1) if self.absolute else total

    def gradient(self, x: Tensor, y: Tensor, plan: Any, *, sparse: bool = False) -> Tensor:
        """Return Σ_j P_ij ∂ₓc(x_i, y_j), shape (..., n, d), for a `Coupling`."""
        difference = _difference(x, y)
        derivative = 2.0 * difference if self.quadratic else 0.0
        if self.absolute:
            derivative = derivative + self.absolute * difference.sign()
        rows = _variable(plan.rows.reshape(-1, plan.rows.shape[-1], 1, 1))
        columns = _variable(plan.columns.reshape(-1, 1, plan.columns.shape[-1], 1))
        weights = ((rows + columns - self(x, y)) / plan.lam).exp()
        return _reduced(weights * derivative, "sum", 2).reshape(*plan.rows.shape, -1)


class LazyMinimum(SoftMinimum):
    """The half-iterations as reductions over KeOps' formula of C."""

    def __init__(self, formula: Any, log_a: Tensor, log_b: Tensor, lam: float) -> None:
        """Take C (B, n, m, 1) and the log-weights, (B, n) and (B, m)."""
        self.log_a, self.log_b, self.lam = log_a, log_b, lam
        self._formula = formula

    def _reduce(self, h: Tensor, lam: float | Tensor, dim: int) -> Tensor:
        inverse = torch.as_tensor(1.0 / lam, dtype=h.dtype, device=h.device).view(-1, 1, 1, 1)
        scores = _variable(h.unsqueeze(-1)) - self._formula * _variable(inverse)
        return _reduced(scores, "logsumexp", 3 + dim).squeeze(-1)


@dataclass(frozen=True)
class KeopsSolver:
    """What another solver does, in the log domain and from zero, for a `Symbolic` cost.

    Attributes:
        solver: which algorithm, with its options; `domain` is not read.

    Raises:
        BackendError: KeOps is not there, or cannot compile.
    """

    solver: AnnealedSolver | ConvergedSolver

    def __call__(
        self, cost: Any, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the potentials, with a `Coupling` for each plan."""
        x, y = points
        shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        log_a, log_b = _finite(log_a, x, shape), _finite(log_b, y, shape)
        a, b = (weights.reshape(-1, weights.shape[-1]) for weights in (log_a, log_b))
        softmin = LazyMinimum(cost, a, b, lam)
        progress = Progress.begin(softmin)
        if isinstance(self.solver, AnnealedSolver):
            starts = self.solver.starts(points, log_a, log_b).expand(shape).reshape(-1).tolist()
            schedules = [epsilon_schedule(start, lam, self.solver.scaling) for start in starts]
            f_before, g_before, progress.f, progress.g = follow(softmin, schedules)
            progress.iterations += torch.tensor([len(values) for values in schedules]).to(x.device)
        else:
            limits = self.solver.max_iterations, self.solver.tolerance
            progress = log_domain.iterate(softmin, progress, *limits)
            f_before, g_before = progress.f, progress.g
        f, f_before = (values.view_as(log_a) for values in (progress.f, f_before))
        g, g_before = (values.view_as(log_b) for values in (progress.g, g_before))
        rows, columns = lam * log_a, lam * log_b
        return Solution(
            f, g, cost, lam, log_a, log_b,
            progress.iterations.view(shape), progress.converged.view(shape),
            plans=(
                Coupling(f + rows, g_before + columns, lam),
                Coupling(f_before + rows, g + columns, lam),
            ),
        )  # fmt: skip


def _finite(given: Tensor | None, points: Tensor, shape: torch.Size) -> Tensor:
    """Log-weights (..., n), uniform if None."""
    n = points.shape[-2]
    weights = points.new_full((n,), -math.log(n)) if given is None else given.detach().to(points)
    # −∞ would become NaN in KeOps' running maximum; this is as good as −∞ in either type.
    return weights.clamp(min=-1e18).expand(*shape, n)


def _difference(x: Tensor, y: Tensor) -> Any:
    """x_i − y_j as a LazyTensor, (B, n, m, d)."""
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
    # What the compiler has not made cannot be imported.
    with library("keops", "a C++ compiler (g++, or what CXX names)"):
        total: Tensor = getattr(formula, reduction)(dim=dim)
    return total


@contextmanager
def library(backend: str, needs: str) -> Iterator[None]:
    """Say in one sentence what a backend lacks, and keep what it says from stdout."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ImportError as error:
        raise BackendError(
            f"backend={backend} needs {needs}, and that is missing on this machine: install it, "
            "or choose backend=native."
        ) from error
