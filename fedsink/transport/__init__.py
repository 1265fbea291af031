"""Entropic optimal transport: costs, solvers, losses and their gradients at the points.

λ is the entropic regularisation in units of cost everywhere. Nothing here knows of privacy
budgets or networks.
"""

from __future__ import annotations

from fedsink.transport.batch_gradients import batch_gradients
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
    SemiDebiasedGradient,
    TransportGradient,
    potential,
    private_gradient,
    self_gradient,
    semi_debiased_gradient,
    transport_gradient,
)
from fedsink.transport.record_clip import clipped_record_field
from fedsink.transport.semidual import record_field, record_norms, row_weights
from fedsink.transport.solution import Solution
from fedsink.transport.solvers.annealed import annealed, bounding_diameter, epsilon_schedule
from fedsink.transport.solvers.annealed_problem import AnnealedProblem
from fedsink.transport.solvers.backends import Backend, backend_named
from fedsink.transport.solvers.sinkhorn import solve
from fedsink.transport.solvers.solver import (
    AnnealedSolver,
    ConvergedSolver,
    FixedSolver,
    Solver,
    UnseenAnnealedSolver,
    UnseenConvergedSolver,
    fixed_solver,
    solver_named,
)

__all__ = [
    "L1",
    "AnnealedProblem",
    "AnnealedSolver",
    "Backend",
    "ConvergedSolver",
    "Cost",
    "FixedSolver",
    "Mixed",
    "SemiDebiasedGradient",
    "Solution",
    "Solver",
    "SquaredEuclidean",
    "TransportGradient",
    "UnseenAnnealedSolver",
    "UnseenConvergedSolver",
    "annealed",
    "append_labels",
    "backend_named",
    "batch_gradients",
    "bounding_diameter",
    "clipped_record_field",
    "clipped_sums",
    "cost_named",
    "epsilon_schedule",
    "fixed_solver",
    "potential",
    "private_gradient",
    "record_field",
    "record_norms",
    "row_weights",
    "self_gradient",
    "semi_debiased_gradient",
    "solve",
    "solver_named",
    "summed_at_once",
    "transport_gradient",
]
