"""Gradients of pairwise costs where the plan is nearly a matching: work per pair that has mass."""

from __future__ import annotations

import numpy as np
from torch import Tensor

# Beyond one pair in so many the dense kernels are as fast: they need no gathered copies.
_PAIRS_PER_ENTRY = 16
# Elements of a gathered block of differences: small enough to stay in cache.
_BLOCK = 1 << 18


def sparse_field(
    x: Tensor, y: Tensor, plan: Tensor, *, quadratic: float, absolute: float
) -> Tensor | None:
    """Return Σ_j P_ij [2q(x_i − y_j) + a·sign(x_i − y_j)] over pairs with P_ij ≠ 0, (..., n, d).

    Nothing is dropped: entries of the plan that are not exactly zero all count. At λ far below
    the costs they are one or two a row.

    The work depends on the plan. Where it must not, use `Cost.gradient` without `sparse`.

    Returns:
        None if the plan has too many entries for this to pay, or does not live on the CPU (where
        sums in a fixed order are cheap).
    """
    if plan.device.type != "cpu" or plan.numel() == 0:
        return None
    if int(plan.count_nonzero()) * _PAIRS_PER_ENTRY > plan.numel():
        return None
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], plan.shape[:-2])
    n, m, d = x.shape[-2], y.shape[-2], x.shape[-1]
    entries = plan.expand(*batch, n, m).reshape(-1)
    pairs = entries.nonzero().squeeze(-1)
    weights = entries.index_select(0, pairs).unsqueeze(-1)
    rows = pairs.div(m, rounding_mode="floor")
    columns = pairs.remainder(m)
    x_points, x_rows = (x, rows.remainder(n)) if x.dim() == 2 else (_flat(x, batch), rows)
    if y.dim() == 2:
        y_points, y_rows = y, columns
    else:
        y_points, y_rows = _flat(y, batch), columns + rows.div(n, rounding_mode="floor") * m
    field = x.new_zeros((int(np.prod(batch, dtype=int)) * n, d))
    step = max(1, _BLOCK // max(1, d))
    for start in range(0, len(pairs), step):
        block = slice(start, start + step)
        difference = x_points.index_select(0, x_rows[block])
        difference.sub_(y_points.index_select(0, y_rows[block]))
        if quadratic == 0.0:
            terms = difference.sign_().mul_(absolute)
        else:
            terms = difference.sign().mul_(absolute).add_(difference, alpha=2.0 * quadratic)
        field.index_add_(0, rows[block], terms.mul_(weights[block]))
    return field.reshape(*batch, n, d)


def _flat(points: Tensor, batch: tuple[int, ...]) -> Tensor:
    return points.expand(*batch, *points.shape[-2:]).reshape(-1, points.shape[-1])
