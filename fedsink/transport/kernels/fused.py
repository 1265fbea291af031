"""The pairwise kernels as one pass over the differences x_i − y_j, where compiled code is wanted.

Each function returns None where it is not, for the caller's eager code to continue.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport.kernels.compiled import Kernel, fits

# Nominal seconds that eager code takes for one coordinate of one pair.
_SECONDS_PER_TERM = 3e-10


def absolute_distances(x: Tensor, y: Tensor) -> Tensor | None:
    """Return ‖x_i − y_j‖₁, shape (..., n, m)."""
    pair = _wanted(_l1, x, y)
    return None if pair is None else _finite(_l1.run(*pair), x, y)


def mixed_distances(x: Tensor, y: Tensor, m: float) -> Tensor | None:
    """Return ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁, shape (..., n, m)."""
    pair = _wanted(_mixed, x, y)
    if pair is None:
        return None
    return _finite(_mixed.run(*pair, torch.full((), m, dtype=x.dtype, device=x.device)), x, y)


def sign_field(x: Tensor, y: Tensor, plan: Tensor) -> Tensor | None:
    """Return Σ_j P_ij sign(x_i − y_j), shape (..., n, d)."""
    pair = _wanted(_signs, x, y)
    if pair is None or plan.dim() != max(x.dim(), y.dim()) or not fits(plan):
        return None
    return _signs.run(*pair, plan.contiguous())


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


def _wanted(kernel: Kernel[..., Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the points as the kernel takes them, None if the eager code is to run."""
    if max(x.dim(), y.dim()) > 3 or not fits(x, y):
        return None
    batch = max([len(points) for points in (x, y) if points.dim() == 3], default=1)
    if not kernel.wanted(_SECONDS_PER_TERM * batch * x.shape[-2] * y.shape[-2] * x.shape[-1]):
        return None
    return _shared(x), _shared(y)


def _shared(points: Tensor) -> Tensor:
    """Return the points contiguous, once if the whole batch shares them, and not as a view.

    The compiler tells views of one tensor from those of another.
    """
    if points.dim() == 3 and points.stride(0) == 0:
        points = points[0]
    if points._base is None and points.is_contiguous():
        return points
    return points.clone(memory_format=torch.contiguous_format)


def _finite(distances: Tensor | None, x: Tensor, y: Tensor) -> Tensor | None:
    """Return None also for distances that overflow: the eager code saturates them."""
    if distances is None or not bool(torch.isfinite(distances.sum())):
        return None
    batch = [len(points) for points in (x, y) if points.dim() == 3]
    if batch and distances.dim() == 2:  # both sides were shared
        distances = distances.expand(max(batch), *distances.shape)
    return distances
