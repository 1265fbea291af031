"""Ground costs c(x, y) and their gradients; a solver sees only the matrix C_ij = c(x_i, y_j).

No n×m×d tensor is made. The L1 parts have two implementations: a compiled one, which passes once
over the differences x_i − y_j, and eager loops over tiles where that is not wanted (`compiled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsink.errors import ConfigError
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


class GroundCost(Protocol):
    """A non-negative, symmetric cost between points, with its gradient under a fixed plan."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns C_ij = c(x_i, y_j), shape (..., n, m), for x (..., n, d) and y (..., m, d)."""
        ...

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij ∂ₓc(x_i, y_j), shape (..., n, d), for a plan P (..., n, m).

        With `sparse` the work may depend on the number of entries of P that are not zero.
        """
        ...


@dataclass(frozen=True)
class SquaredEuclidean:
    """c(x, y) = ‖x − y‖₂², the cost matched to Gaussian noise when λ = 2σ².

    GeomLoss' p = 2 cost is half of this one.
    """

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns ‖x_i‖² + ‖y_j‖² − 2⟨x_i, y_j⟩ (one matmul), never negative."""
        _check_points(x, y)
        x_near, y_near = centred(x, y)
        x_norms, y_norms = x_near.square().sum(-1), y_near.square().sum(-1)
        distances = torch.matmul(x_near, y_near.transpose(-1, -2)).mul_(-2.0)
        distances.add_(x_norms.unsqueeze(-1)).add_(y_norms.unsqueeze(-2)).clamp_(min=0.0)
        if not bool(torch.isfinite(x_norms.sum() + y_norms.sum())):
            return _saturate(distances, x, y)
        return distances

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij·2(x_i − y_j) = 2(x_i Σ_j P_ij − (P y)_i), one matmul."""
        _check_plan(x, y, plan)
        x, y = centred(x, y)
        return 2.0 * (x * plan.sum(-1, keepdim=True) - plan @ y)


@dataclass(frozen=True)
class L1:
    """c(x, y) = ‖x − y‖₁ = Σ_k |x_k − y_k|, matched to Laplace noise of scale λ."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns Σ_k |x_ik − y_jk|, with O(n·m + block) memory.

        Eager code loops over the coordinates for many pairs, each step on n×m tiles, and over
        blocks of rows for few pairs in many dimensions. Both are faster than torch.cdist.
        """
        _check_points(x, y)
        if (fused := _compiled_distances(_l1, x, y)) is not None:
            return fused
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        n, m, d = x.shape[-2], y.shape[-2], x.shape[-1]
        distances = x.new_zeros((*batch, n, m))
        if distances.numel() == 0 or d == 0:
            return distances
        if distances.numel() >= _MANY_PAIRS:
            # (d, ..., n) and (d, ..., m): each coordinate is one contiguous slice.
            x_axes, y_axes = (points.movedim(-1, 0).contiguous() for points in (x, y))
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

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij sign(x_i − y_j), with sign(0) = 0 and O(n·m + block) memory."""
        _check_plan(x, y, plan)
        if sparse and (field := sparse_field(x, y, plan, quadratic=0.0, absolute=1.0)) is not None:
            return field
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
            weights = plan[..., rows, :].contiguous()
            # The derivative of Σ_ij P_ij ‖x_i − y_j‖₁; the last argument is not read for p = 1.
            field[..., rows, :] = torch.ops.aten._cdist_backward(
                weights, x[..., rows, :].contiguous(), y, 1.0, weights
            )
        return field


@dataclass(frozen=True)
class Mixed:
    """c_m(x, y) = ‖x − y‖₂² + m‖x − y‖₁, DP-Sinkhorn's cost (Cao et al. 2021).

    m = 0 is exactly SquaredEuclidean and takes its matmul path.

    Attributes:
        m: weight of the L1 part.
    """

    m: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.m < float("inf"):
            raise ConfigError(
                f"The weight m of the L1 part must be a finite number ≥ 0, got {self.m}: "
                "use m=0 for the purely quadratic cost."
            )

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁, finite for finite points."""
        _check_points(x, y)
        if self.m == 0.0:
            return SquaredEuclidean()(x, y)
        if (fused := _compiled_distances(_mixed, x, y, self.m)) is not None:
            return fused
        total = SquaredEuclidean()(x, y).add_(L1()(x, y), alpha=self.m)
        # Each part is finite for finite points; their sum saturates as they do.
        return total.clamp_(max=torch.finfo(total.dtype).max)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij [2(x_i − y_j) + m sign(x_i − y_j)]."""
        _check_plan(x, y, plan)
        if self.m == 0.0:
            return SquaredEuclidean().gradient(x, y, plan)
        if sparse:
            field = sparse_field(x, y, plan, quadratic=1.0, absolute=self.m)
            if field is not None:
                return field
        quadratic = SquaredEuclidean().gradient(x, y, plan)
        return quadratic.add_(L1().gradient(x, y, plan), alpha=self.m)


def cost_named(name: str, m: float = 1.0) -> GroundCost:
    """Returns the cost called "l1", "squared_l2" or "mixed" (only that one reads m).

    Raises ConfigError for any other name.
    """
    if name == "l1":
        return L1()
    if name == "squared_l2":
        return SquaredEuclidean()
    if name == "mixed":
        return Mixed(m)
    raise ConfigError(f'Unknown cost "{name}": choose one of l1, squared_l2, mixed.')


def append_labels(
    x: Tensor, labels: Tensor, classes: int, weight: float, *, check: bool = True
) -> Tensor:
    """Returns [x, α_c·onehot(label)], shape (n, d + classes), for x (n, d) and labels (n,).

    With `weight` α_c, a label mismatch adds 2α_c² to ‖x − y‖₂² and 2α_c to ‖x − y‖₁, so
    2α_c² + 2mα_c to c_m (Cao et al. 2021, where α_c = 15). Without `check` the host reads no label.

    Raises ValueError if a label is not in 0..classes−1 or the two lengths differ.
    """
    if labels.shape != x.shape[:-1]:
        raise ValueError(
            f"One label per point is needed: got labels of shape {tuple(labels.shape)} for "
            f"points of shape {tuple(x.shape)}."
        )
    if check and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"Labels must lie in 0..{classes - 1}, got values from {int(labels.min())} to "
            f"{int(labels.max())}: set the number of classes to match."
        )
    one_hot = torch.nn.functional.one_hot(labels.long(), classes).to(x.dtype)
    return torch.cat((x, weight * one_hot), dim=-1)


def _check_points(x: Tensor, y: Tensor) -> None:
    if x.dim() < 2 or y.dim() < 2 or x.shape[-1] != y.shape[-1]:
        raise ValueError(
            "Points must have shapes (..., n, d) and (..., m, d) with the same d, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}: flatten images first."
        )
    if x.dtype != y.dtype or not x.is_floating_point():
        raise ValueError(
            f"Points must share one floating type, got {x.dtype} and {y.dtype}: convert one."
        )


def _check_plan(x: Tensor, y: Tensor, plan: Tensor) -> None:
    _check_points(x, y)
    if plan.shape[-2:] != (x.shape[-2], y.shape[-2]):
        raise ValueError(
            f"The plan must have shape (..., {x.shape[-2]}, {y.shape[-2]}) to match the points, "
            f"got {tuple(plan.shape)}."
        )


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


def sparse_field(
    x: Tensor, y: Tensor, plan: Tensor, *, quadratic: float, absolute: float
) -> Tensor | None:
    """Returns Σ_j P_ij [2q(x_i − y_j) + a·sign(x_i − y_j)] over pairs with P_ij ≠ 0, (..., n, d).

    Every entry of the plan that is not exactly zero counts. At λ far below the costs there are one
    or two in a row. The work depends on the plan. None where it has too many entries for this to
    pay, or is not on the CPU (where sums in a fixed order are cheap).
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
    if x.dim() == 2:
        x_points, x_rows = x, rows.remainder(n)
    else:
        x_points, x_rows = x.expand(*batch, n, d).reshape(-1, d), rows
    if y.dim() == 2:
        y_points, y_rows = y, columns
    else:
        y_points = y.expand(*batch, m, d).reshape(-1, d)
        y_rows = columns + rows.div(n, rounding_mode="floor") * m
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
    """Returns a kernel's distances; None where it is not wanted, or eager code has to saturate."""
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
    """Returns the points contiguous, once if the whole batch shares them, and not as a view."""
    if points.dim() == 3 and points.stride(0) == 0:
        points = points[0]
    if points._base is None and points.is_contiguous():  # a view would be compiled anew
        return points
    return points.clone(memory_format=torch.contiguous_format)


def _row_blocks(rows: int, elements_per_row: int, tile: int) -> list[slice]:
    """Returns consecutive slices of about `tile` elements each that cover all rows."""
    step = max(1, tile // max(1, elements_per_row))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _saturate(distances: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Replaces overflow by the largest finite number; costs of points with NaN or ∞ are NaN."""
    largest = torch.finfo(distances.dtype).max
    finite = torch.nan_to_num_(distances, nan=largest, posinf=largest)
    valid = x.isfinite().all(-1).unsqueeze(-1) & y.isfinite().all(-1).unsqueeze(-2)
    return finite.masked_fill_(~valid, float("nan"))
