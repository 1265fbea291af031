"""A transport gradient that is a sum over records, so that each record can be clipped alone.

In the Sinkhorn gradient Σ_j P_ij (x_i − y_j) the plan couples all records. Here the potential f
comes from generated points alone (`losses.potential`), and each record chooses its rows by a soft
c-transform (the semi-dual of Genevay et al. 2016, eq. 7): w_ij = softmax_i((f_i − c(x_i, y_j))/λ).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FLOOR = -300.0  # its square is no underflow either


def row_weights(f: Tensor, cost_matrix: Tensor, lam: float) -> Tensor:
    """Return w_ij = exp((f_i − C_ij)/λ) / Σ_k exp((f_k − C_kj)/λ), shape (..., n, m).

    f has shape (..., n) and C (..., n, m), both in units of cost like λ > 0. Each column sums
    to one: a record distributes one unit over the rows. Column j depends on record j alone.

    """
    return torch.softmax((f.unsqueeze(-1) - cost_matrix) / lam, dim=-2)


def masked_row_weights(f: Tensor, cost_matrix: Tensor, lam: float, mask: Tensor) -> Tensor:
    """Return `row_weights` with rows where `mask` (..., n, m) is false left out, in float64.

    Those get weight exactly 0, and a column without any row is zero. The time does not depend on
    the values: weights below e^−300 of a column's largest are raised to that, as exp takes many
    times longer where its result underflows.
    """
    scores = ((f.unsqueeze(-1) - cost_matrix) / lam).to(torch.float64)
    largest = scores.masked_fill(~mask, -math.inf).amax(-2, keepdim=True)
    raised = (scores - largest).clamp_(min=_FLOOR, max=0.0).exp_().masked_fill_(~mask, 0.0)
    # The largest term is 1, so the minimum matters for columns without any row only.
    return raised.div_(raised.sum(-2, keepdim=True).clamp_(min=1.0))


def record_field(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Return Σ_j w_ij (x_i − y_j), shape (..., n, d), by one matmul.

    With w from `row_weights` it is the unclipped sum of all records' contributions; half the
    gradient of −λ Σ_j log Σ_i exp((f_i − ‖x_i − y_j‖²)/λ) at x.
    """
    return x * w.sum(-1, keepdim=True) - w @ y


def record_norms(w: Tensor, squared_distances: Tensor) -> Tensor:
    """Return ‖g_j‖₂ = (Σ_i w_ij² ‖x_i − y_j‖²)^½, shape (..., m), of g_j = (w_ij(x_i − y_j))_i."""
    return (w.square() * squared_distances).sum(-2).sqrt()
