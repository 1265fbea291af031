"""Entropic optimal transport: costs, solvers, losses and their gradients at the points.

λ is the entropic regularisation in units of cost everywhere. Nothing here knows of privacy
budgets or networks.
"""

from __future__ import annotations

from fedsink.transport.clipped_sums import clipped_sums, summed_at_once
from fedsink.transport.costs import (
    L1,
    Cost,
    Mixed,
    SquaredEuclidean,
    append_labels,
    cost_named,
)
from fedsink.transport.losses import (
    TransportGradient,
    batch_gradients,
    potential,
    self_gradient,
    transport_gradient,
)
from fedsink.transport.semidual import record_field, record_norms, row_weights
from fedsink.transport.solution import Solution
from fedsink.transport.solvers.annealed import annealed, bounding_diameter, epsilon_schedule
from fedsink.transport.solvers.backends import BACKENDS, NATIVE, by_backend, check_backend
from fedsink.transport.solvers.solver import (
    AnnealedSolver,
    ConvergedSolver,
    FixedSolver,
    Solver,
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
    "Cost",
    "FixedSolver",
    "Mixed",
    "Solution",
    "Solver",
    "SquaredEuclidean",
    "TransportGradient",
    "annealed",
    "append_labels",
    "batch_gradients",
    "bounding_diameter",
    "by_backend",
    "check_backend",
    "clipped_sums",
    "cost_named",
    "epsilon_schedule",
    "fixed_solver",
    "potential",
    "record_field",
    "record_norms",
    "row_weights",
    "self_gradient",
    "solve",
    "solver_named",
    "summed_at_once",
    "transport_gradient",
]
