"""Exact transport, λ = 0, between two clouds of equally many equally weighted points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.costs import Cost


@dataclass(frozen=True)
class AssignmentGradient:
    """W_{c,0} of two clouds of n points, and its gradient at the first.

    Attributes:
        value: W = 1/n Σ_i C[i, π(i)], in units of cost.
        gradient: ∂W/∂x_i = 1/n ∂ₓc(x_i, y_π(i)), shape (n, d).
        assignment: π, the target of each source point, int64 (n,).
    """

    value: Tensor
    gradient: Tensor
    assignment: Tensor


def assignment_gradient(x: Tensor, y: Tensor, cost: Cost) -> AssignmentGradient:
    """Return W_{c,0} = min_π 1/n Σ_i C[i, π(i)] over permutations π, and its gradient at x.

    With equal weights an optimal plan is a permutation (Birkhoff; Peyré and Cuturi 2019, Prop.
    2.1), found exactly in O(n³) on the processor: 10 ms at n = 300.

    Args:
        x: points that receive the gradient, (n, d).
        y: points of the other measure, (n, d).
        cost: c.

    Raises:
        ValueError: if the numbers of points differ, or a cost is not finite.
    """
    from scipy.optimize import linear_sum_assignment

    if x.dim() != 2 or x.shape != y.shape:
        raise ValueError(
            f"An assignment needs two clouds of the same shape (n, d), got {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    with torch.no_grad():
        matrix = cost(x, y)
        if not bool(matrix.isfinite().all()):
            raise ValueError("An assignment needs finite costs: the points are not finite.")
        _, columns = linear_sum_assignment(matrix.cpu().numpy())
        assignment = torch.from_numpy(columns).to(x.device, torch.int64)
        value = matrix.gather(1, assignment.unsqueeze(1)).mean()
        # Matched pairs are n problems of one point each: n gradients, not n².
        one = torch.full((len(x), 1, 1), 1.0 / len(x), dtype=x.dtype, device=x.device)
        gradient = cost.gradient(x.unsqueeze(1), y[assignment].unsqueeze(1), one).squeeze(1)
    return AssignmentGradient(value, gradient, assignment)
