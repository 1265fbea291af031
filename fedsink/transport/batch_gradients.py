"""The transport gradients of K clients' batches, before the clip."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.transport.costs import Cost
from fedsink.transport.losses import transport_gradient
from fedsink.transport.solvers.solver import Solver


def batch_gradients(
    x: Tensor, y: Tensor, own: Tensor, present: Tensor, cost: Cost, lam: float, solver: Solver
) -> Tensor:
    """Return ∂_X 2Ŵ_λ(X_k, Y_k) + G_k for each of K batches, shape (K, n, d).

    A batch without records gives G_k alone: a problem of the same size is solved, and its result
    dropped. With a `FixedSolver` the operations depend on shapes and public numbers alone.

    Args:
        x: generated points, (K, n, d′) or (n, d′) for all; labels may stand behind d coordinates.
        y: private records in B ≥ 1 places, (K, B, d′), finite also in empty places.
        own: G, the data-independent part of the gradient, (K, n, d) or (n, d).
        present: which places hold a record, (K, B) bool; they weigh alike.
        cost: c.
        lam: λ > 0, in units of cost.
        solver: what solves the problems.

    Raises:
        ValueError, RuntimeError, ArithmeticError: costs beyond the range of floats or of λ. With a
            solver that looks at the costs this depends on the records.
    """
    some = present.any(-1, keepdim=True)
    counted = present | ~some
    log_b = torch.where(counted, -counted.sum(-1, keepdim=True).to(y.dtype).log(), -math.inf)
    field = transport_gradient(x, y, cost, lam, log_b=log_b, solver=solver).gradient
    return torch.where(some.unsqueeze(-1), 2.0 * field[..., : own.shape[-1]] + own, own)
