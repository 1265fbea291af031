"""Nearest neighbours between two samples, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**24
"""Numbers that a block of distances, or of neighbours, holds at most."""


def distance_blocks(
    queries: Tensor, points: Tensor, *, rows: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield row ranges of `queries` and their squared distances (rows, M) to all `points`.

    `‖q − p‖² = ‖q‖² + ‖p‖² − 2⟨q, p⟩` on samples centred at the points' mean, which keeps the
    cancellation small; clamped at 0. A block never holds more than 2²⁴ numbers.

    Args:
        queries: (N, d).
        points: (M, d), M >= 1, the same type.
        rows: queries per block; None for as many as fit.

    Raises:
        ValueError: no points, or samples of different dimension.
    """
    if points.ndim != 2 or len(points) == 0 or queries.shape[1:] != points.shape[1:]:
        raise ValueError(
            f"Distances need queries (N, d) and at least one point (M, d); "
            f"received {tuple(queries.shape)} and {tuple(points.shape)}."
        )
    rows = rows or max(1, BLOCK // len(points))
    centre = points.mean(dim=0)
    points = points - centre
    norms = points.square().sum(dim=1)
    for start in range(0, len(queries), rows):
        part = queries[start : start + rows] - centre
        squared = torch.addmm(norms.unsqueeze(0), part, points.T, alpha=-2)
        squared += part.square().sum(dim=1, keepdim=True)
        yield slice(start, start + len(part)), squared.clamp_(min=0)


def nearest(
    queries: Tensor, points: Tensor, *, k: int = 1, same: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the distances to the k nearest `points`, ascending, and their indices, both (N, k).

    The distances of the neighbours are computed again from the differences, so that a copy
    has distance 0 and not the rounding of the blocks.

    Args:
        queries: (N, d).
        points: (M, d).
        k: neighbours per query.
        same: queries and points are one sample, and no point is its own neighbour.

    Raises:
        ValueError: fewer than k points (k + 1 if `same`), or samples that do not fit.
    """
    if not 1 <= k <= len(points) - same:
        raise ValueError(f"{k} nearest neighbours need more points; received {len(points)} points.")
    rows_at_once = max(1, BLOCK // max(len(points), k * points.shape[1]))
    distances = torch.empty(len(queries), k, dtype=queries.dtype)
    indices = torch.empty(len(queries), k, dtype=torch.int64)
    for rows, squared in distance_blocks(queries, points, rows=rows_at_once):
        if same:
            row = torch.arange(len(squared))
            squared[row, row + rows.start] = torch.inf
        neighbours = squared.topk(k, dim=1, largest=False).indices
        exact = (queries[rows].unsqueeze(1) - points[neighbours]).square().sum(dim=2).sqrt()
        distances[rows], order = exact.sort(dim=1)
        indices[rows] = neighbours.gather(1, order)
    return distances, indices
