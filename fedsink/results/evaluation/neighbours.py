"""Nearest neighbours, and memorisation by them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**24
"""Largest number of elements in a block of distances, or of neighbours."""


def memorisation(images: Tensor, train: Tensor, held_out: Tensor, *, seed: int) -> dict[str, float]:
    """Compares the distances of G generated images to N training and M held-out images.

    Training and held-out images come from one law, so for a generator that remembers neither,
    each of the T = N + M real images is a training image with probability N/T. Let c_j be the
    number of generated images whose nearest real image is j, `s = 1/G Σ_{j in training} c_j`, and
    `excess = (s − N/T) / (M/T)`: 0 in expectation without memorisation, 1 when every nearest image
    is a training image, below 0 for a generator that saw the held-out set, and a if it copies a
    fraction a of its images and invents the rest. Exchanging training and held-out images at random
    gives s the variance `NM / (T(T−1)) · Σ_j (c_j − G/T)² / G²` (drawing without replacement), and
    `z = (s − N/T) / √variance` is then about standard normal, even for a generator that returns to
    few images: above 3 means that it knows its training set better than chance allows.

    The median distances (pixels) to equally many, min(N, M), images of either set, which `seed`
    draws, say the same in other units: copies have the training images nearer. The idea is Meehan,
    Chaudhuri and Dasgupta's (2020, "data-copying"). It is a symptom; the privacy bound is ε.
    """
    sizes = len(images), len(train), len(held_out)
    if min(sizes) == 0:
        raise ValueError(
            "Memorisation needs generated, training and held-out images; "
            f"received {sizes[0]}, {sizes[1]} and {sizes[2]}."
        )
    generator = torch.Generator().manual_seed(seed)
    equal = min(sizes[1:])
    train_part, near_train, i = _distances(images, train, equal, generator)
    held_part, near_held, j = _distances(images, held_out, equal, generator)
    # An image that both sets hold counts half for each.
    to_train = (near_train < near_held).double() + 0.5 * (near_train == near_held)
    counts = torch.zeros(sizes[1] + sizes[2], dtype=torch.float64)
    counts.index_add_(0, i, to_train).index_add_(0, sizes[1] + j, 1 - to_train)
    return {
        **_against_chance(counts, sizes[1]),
        "training_distance": float(train_part.median()),
        "held_out_distance": float(held_part.median()),
    }


def _against_chance(counts: Tensor, train: int) -> dict[str, float]:
    total, generated = len(counts), float(counts.sum())
    expected = train / total
    excess = float(counts[:train].sum()) / generated - expected
    scatter = float((counts - generated / total).square().sum())
    variance = train * (total - train) / (total * max(total - 1, 1)) * scatter / generated**2
    return {
        "excess": excess / (1 - expected),
        # Every real image is equally often the nearest: every exchange gives the same s.
        "z": excess / math.sqrt(variance) if variance > 0 else 0.0,
    }


def _distances(
    images: Tensor, reference: Tensor, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns distances (G,) to the nearest of `size` images and of all, and the latter's index."""
    order = torch.randperm(len(reference), generator=generator)
    flat, reference = images.flatten(1), reference.flatten(1)
    part, rest = order[:size], order[size:]
    near_part, index = (column[:, 0] for column in nearest(flat, reference[part]))
    if len(rest) == 0:
        return near_part, near_part, part[index]
    near_rest, rest_index = (column[:, 0] for column in nearest(flat, reference[rest]))
    closer = near_rest < near_part
    return (
        near_part,
        torch.where(closer, near_rest, near_part),
        torch.where(closer, rest[rest_index], part[index]),
    )


def distance_blocks(
    queries: Tensor, points: Tensor, *, rows: int | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yields row ranges of `queries` and their squared distances (rows, M) to all `points`."""
    # `‖q − p‖² = ‖q‖² + ‖p‖² − 2⟨q, p⟩` on samples centred at the points' mean, which keeps the
    # cancellation small. A block holds `rows` queries; None: as many as fit into 2²⁴ numbers.
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
    """Returns the distances (N, k) to the k nearest `points`, ascending, and their indices."""
    # With `same`, queries and points are one sample, and no point is its own neighbour. Distances
    # are computed again from the differences: a copy has distance 0, not the blocks' rounding.
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
