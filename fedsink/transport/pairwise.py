"""Distances between all pairs of points and their sign fields, without an n×m×d tensor.

The L1 parts have two implementations: a compiled one, which passes once over the differences
x_i − y_j, and eager loops over tiles where that is not wanted (see `compiled`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsink.transport.compiled import Kernel, fits

# Elements of a temporary tile that stays in cache (float32: 1 MiB, and 256 KiB for blocks of rows,
# which are read again by a reduction). Measured on one core of an AMD EPYC.
_COORDINATE_TILE = 1 << 18
_ROW_TILE = 1 << 16
# Below this many pairs a coordinate's step is shorter than the cost of launching it.
_MANY_PAIRS = 1 << 14
# The backward kernel of cdist may hold n·m·d elements on an accelerator, so it gets blocks too.
_BACKWARD_TILE = 1 << 26
# Beyond one entry in so many pairs the dense kernels are as fast: they need no gathered copies.
_PAIRS_PER_ENTRY = 16
# Elements of a gathered block of differences: small enough to stay in cache.
_BLOCK = 1 << 18
# Nominal seconds that eager code takes for one coordinate of one pair.
_SECONDS_PER_TERM = 3e-10


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns ‖x_i − y_j‖₂², shape (..., n, m), clamped at 0; finite for finite points.

    Values above the largest number of the dtype saturate there.
    """
    x_near, y_near = centred(x, y)
    x_norms = x_near.square().sum(-1)
    y_norms = y_near.square().sum(-1)
    distances = torch.matmul(x_near, y_near.transpose(-1, -2)).mul_(-2.0)
    distances.add_(x_norms.unsqueeze(-1)).add_(y_norms.unsqueeze(-2)).clamp_(min=0.0)
    if not bool(torch.isfinite(x_norms.sum() + y_norms.sum())):
        return _saturate(distances, x, y)
    return distances


def centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both clouds less the mean of x: rounding follows their size, not their place.

    Guarantees:
        - No row of y changes the rounding of another row.
          (test_one_record_does_not_change_another_ones_costs)
    """
    centre = x.detach().mean(-2, keepdim=True)
    # Squares of a larger one, or one that is not finite, would overflow beside ordinary points.
    usual = centre.abs() <= torch.finfo(x.dtype).max ** 0.5 / 2**20
    centre = centre.where(usual, torch.zeros_like(centre))
    return x - centre, y - centre


def absolute_distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns ‖x_i − y_j‖₁ = Σ_k |x_ik − y_jk|, shape (..., n, m).

    Eager code loops over the coordinates for many pairs, each step on n×m tiles, and over blocks
    of rows for few pairs in many dimensions. Both are faster than torch.cdist.
    """
    if (fused := _compiled_distances(_l1, x, y)) is not None:
        return fused
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    n, m, d = x.shape[-2], y.shape[-2], x.shape[-1]
    distances = x.new_zeros((*batch, n, m))
    if distances.numel() == 0 or d == 0:
        return distances
    if distances.numel() >= _MANY_PAIRS:
        # (d, ..., n) and (d, ..., m): each coordinate is one contiguous slice.
        x_axes, y_axes = _coordinates(x), _coordinates(y)
        for rows in _row_blocks(n, distances.numel() // n, _COORDINATE_TILE):
            target = distances[..., rows, :]
            tile = torch.empty_like(target, memory_format=torch.contiguous_format)
            for x_k, y_k in zip(x_axes, y_axes, strict=True):
                torch.sub(x_k[..., rows, None], y_k[..., None, :], out=tile)
                target.add_(tile.abs_())
    else:
        blocks = _row_blocks(n, distances.numel() // n * d, _ROW_TILE)
        buffer = x.new_empty((*batch, blocks[0].stop, m, d))
        for rows in blocks:
            difference = buffer[..., : rows.stop - rows.start, :, :]
            torch.sub(x[..., rows, None, :], y[..., None, :, :], out=difference)
            distances[..., rows, :] = difference.abs_().sum(-1)
    if not bool(torch.isfinite(distances.sum())):
        return _saturate(distances, x, y)
    return distances


def mixed_distances(x: Tensor, y: Tensor, m: float) -> Tensor:
    """Returns ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁, shape (..., n, m), finite for finite points."""
    if (fused := _compiled_distances(_mixed, x, y, m)) is not None:
        return fused
    total = squared_distances(x, y).add_(absolute_distances(x, y), alpha=m)
    # Each part is finite for finite points; their sum saturates as they do.
    return total.clamp_(max=torch.finfo(total.dtype).max)


def sign_field(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    """Returns Σ_j P_ij sign(x_i − y_j), shape (..., n, d), with sign(0) = 0."""
    pair = _compilable(_signs, x, y)
    if pair is not None and plan.dim() == max(x.dim(), y.dim()) and fits(plan):
        fused = _signs.run(*pair, plan.contiguous())
        if fused is not None:
            return fused
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], plan.shape[:-2])
    n, m, d = x.shape[-2], y.shape[-2], x.shape[-1]
    field = x.new_zeros((*batch, n, d))
    if field.numel() == 0 or m == 0:
        return field
    x = x.expand(*batch, n, d)
    y = y.expand(*batch, m, d).contiguous()
    plan = plan.expand(*batch, n, m)
    for rows in _row_blocks(n, field.numel() // n * m, _BACKWARD_TILE):
        field[..., rows, :] = _backward(x[..., rows, :], y, plan[..., rows, :])
    return field


def sparse_field(
    x: Tensor, y: Tensor, plan: Tensor, *, quadratic: float, absolute: float
) -> Tensor | None:
    """Returns Σ_j P_ij [2q(x_i − y_j) + a·sign(x_i − y_j)] over pairs with P_ij ≠ 0, (..., n, d).

    Every entry of the plan that is not exactly zero counts. At λ far below the costs there are one
    or two in a row. The work depends on the plan; where it must not, call `GroundCost.gradient`
    without `sparse`.

    Returns:
        None if the plan has too many entries for this to pay, or is not on the CPU (where sums
        in a fixed order are cheap).
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


@Kernel
def _l1(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).abs().sum(-1)


@Kernel
def _mixed(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    return (difference * (difference + m)).sum(-1)


@Kernel
def _signs(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    signs = (x.unsqueeze(-2) - y.unsqueeze(-3)).sign()
    return (signs * plan.unsqueeze(-1)).sum(-2)


def _compiled_distances(
    kernel: Kernel[..., Tensor], x: Tensor, y: Tensor, *weights: float
) -> Tensor | None:
    """Returns a kernel's distances; None where eager code has to compute them.

    That is where compiled code is not wanted, and where distances overflow, as eager code
    saturates them.
    """
    pair = _compilable(kernel, x, y)
    if pair is None:
        return None
    scalars = (torch.full((), weight, dtype=x.dtype, device=x.device) for weight in weights)
    distances = kernel.run(*pair, *scalars)
    if distances is None or not bool(torch.isfinite(distances.sum())):
        return None
    batch = [len(points) for points in (x, y) if points.dim() == 3]
    if batch and distances.dim() == 2:  # both sides were shared
        distances = distances.expand(max(batch), *distances.shape)
    return distances


def _compilable(kernel: Kernel[..., Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Returns the points in the layout a kernel takes, None if the eager code is to run."""
    if max(x.dim(), y.dim()) > 3 or not fits(x, y):
        return None
    batch = max([len(points) for points in (x, y) if points.dim() == 3], default=1)
    if not kernel.wanted(_SECONDS_PER_TERM * batch * x.shape[-2] * y.shape[-2] * x.shape[-1]):
        return None
    return _shared(x), _shared(y)


def _shared(points: Tensor) -> Tensor:
    """Returns the points contiguous, once if the whole batch shares them, and not as a view.

    The compiler distinguishes views of one tensor from those of another.
    """
    if points.dim() == 3 and points.stride(0) == 0:
        points = points[0]
    if points._base is None and points.is_contiguous():
        return points
    return points.clone(memory_format=torch.contiguous_format)


def _backward(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    """Returns the sign field as the derivative of Σ_ij P_ij ‖x_i − y_j‖₁ at x, one fused loop."""
    weights = plan.contiguous()
    # The last argument, the distances, is not read for p = 1.
    field: Tensor = torch.ops.aten._cdist_backward(
        weights, x.contiguous(), y.contiguous(), 1.0, weights
    )
    return field


def _coordinates(points: Tensor) -> Tensor:
    return points.movedim(-1, 0).contiguous()


def _flat(points: Tensor, batch: tuple[int, ...]) -> Tensor:
    return points.expand(*batch, *points.shape[-2:]).reshape(-1, points.shape[-1])


def _row_blocks(rows: int, elements_per_row: int, tile: int) -> list[slice]:
    """Returns consecutive slices of about `tile` elements each that cover all rows."""
    step = max(1, tile // max(1, elements_per_row))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _saturate(distances: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Replaces overflow by the largest finite number where both points are finite.

    Points that are not finite keep a NaN cost, so that a solver refuses them.
    """
    largest = torch.finfo(distances.dtype).max
    finite = torch.nan_to_num_(distances, nan=largest, posinf=largest)
    valid = x.isfinite().all(-1).unsqueeze(-1) & y.isfinite().all(-1).unsqueeze(-2)
    return finite.masked_fill_(~valid, float("nan"))
