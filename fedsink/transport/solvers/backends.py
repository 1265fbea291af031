"""Transport problems solved by a library in this package's place, with the same answers.

`native` is this package. `geomloss` runs GeomLoss' loop on the same costs and asks its
backpropagation for the plans, as a second opinion. `keops` never holds n×m numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.costs import Cost, SquaredEuclidean
from fedsink.transport.problem import prepare
from fedsink.transport.solution import Solution
from fedsink.transport.solvers.annealed import epsilon_schedule
from fedsink.transport.solvers.keops import KeopsSolver, Symbolic, library
from fedsink.transport.solvers.solver import AnnealedSolver, ConvergedSolver, Given, Points, Solver

NATIVE = "native"
BACKENDS = (NATIVE, "geomloss", "keops")


def by_backend(name: str, cost: Cost, solver: Solver) -> tuple[Cost, Solver]:
    """The cost and the solver by which a backend does what these two do; they belong together.

    Raises:
        ConfigError: there is no such backend, or it does not have this cost or this solver.
    """
    if name == NATIVE:
        return cost, solver
    if name == "geomloss" and isinstance(solver, AnnealedSolver):
        return cost, GeomlossSolver(solver)
    if name == "geomloss":
        raise ConfigError(
            "backend=geomloss runs the annealed schedule alone: set solver=annealed, or choose "
            "backend=native."
        )
    if name == "keops" and isinstance(solver, AnnealedSolver | ConvergedSolver):
        return Symbolic.of(cost), KeopsSolver(solver)
    if name == "keops":
        raise ConfigError("backend=keops has no solver of fixed work: choose backend=native.")
    raise ConfigError(f'Unknown backend "{name}": choose one of {", ".join(BACKENDS)}.')


def check_backend(name: str) -> None:
    """Solve a problem of one point, and raise BackendError if the library cannot run here."""
    point = torch.zeros(1, 1)
    cost, solver = by_backend(name, SquaredEuclidean(), AnnealedSolver())
    solver(cost(point, point), 1.0, points=(point, point))


@dataclass(frozen=True)
class GeomlossSolver:
    """GeomLoss' SamplesLoss (p = 1, blur = λ) on the same cost matrix, one problem at a time.

    Attributes:
        annealed: the schedule's options.

    Raises:
        BackendError: GeomLoss is not installed.
    """

    annealed: AnnealedSolver

    def __call__(
        self, cost: Tensor, lam: float, *, points: Points, log_a: Given = None, log_b: Given = None
    ) -> Solution:
        """Return the potentials at the end of the schedule."""
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
        """f, g and the two plans of one problem, C (n, m)."""
        with library("geomloss", "the package geomloss"):
            from geomloss import SamplesLoss
        # Points that say no more than whose they are: GeomLoss asks for C and for its transpose.
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
