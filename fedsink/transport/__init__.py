"""Entropic optimal transport: costs, solvers, losses and their gradients at the points.

λ is the entropic regularisation in units of cost everywhere. Nothing here knows of privacy
budgets or networks. The loss of two clouds of points, with its gradient at the first:

>>> import torch
>>> from fedsink.transport import ConvergedSolver, SquaredEuclidean, transport_gradient
>>> x, y = torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [6.0]])
>>> loss = transport_gradient(x, y, SquaredEuclidean(), lam=0.1, solver=ConvergedSolver())
>>> round(float(loss.solution.primal_cost), 3)  # each point goes to its neighbour: (1 + 4)/2
2.5
>>> loss.gradient.round(decimals=3).tolist()  # 2(x − y)/2
[[-1.0], [-2.0]]
"""

from __future__ import annotations

from fedsink.transport.annealed import AnnealedSolver
from fedsink.transport.backends import BACKENDS, NATIVE, by_backend, check_backend
from fedsink.transport.clipped_sums import clipped_sums
from fedsink.transport.costs import (
    L1,
    GroundCost,
    Mixed,
    SquaredEuclidean,
    append_labels,
    cost_named,
)
from fedsink.transport.losses import (
    SinkhornLoss,
    TransportGradient,
    batch_gradients,
    potential,
    self_gradient,
    transport_gradient,
)
from fedsink.transport.problem import Solution, Solver
from fedsink.transport.solvers import (
    ConvergedSolver,
    FixedSolver,
    fixed_solver,
    solve,
    solver_named,
)

__all__ = [
    "BACKENDS",
    "L1",
    "NATIVE",
    "AnnealedSolver",
    "ConvergedSolver",
    "FixedSolver",
    "GroundCost",
    "Mixed",
    "SinkhornLoss",
    "Solution",
    "Solver",
    "SquaredEuclidean",
    "TransportGradient",
    "append_labels",
    "batch_gradients",
    "by_backend",
    "check_backend",
    "clipped_sums",
    "cost_named",
    "fixed_solver",
    "potential",
    "self_gradient",
    "solve",
    "solver_named",
    "transport_gradient",
]
