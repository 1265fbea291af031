"""Distances between two samples: sliced and exact Wasserstein-2, and Fréchet; label counts."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedsink.results.evaluation.sets import shuffled

PROJECTION_BLOCK = 64


def sliced_w2(x: Tensor, y: Tensor, *, projections: int = 512, seed: int = 0) -> float:
    """Returns the sliced Wasserstein-2 distance of samples (N, ...) and (M, ...), in their units.

    `SW₂² = E_θ W₂²(θ·x, θ·y)`, θ uniform on the unit sphere of dimension d (Bonneel et al. 2015,
    eq. 4), by the mean over `projections` directions: the relative error falls as the inverse root
    of their number. In one dimension the sorted order is the optimal plan,
    `W₂² = 1/n Σ_i (x_(i) − y_(i))²`. The larger sample is cut to the smaller one's size by drawing
    without replacement. Two points at distance a have SW₂² = a²/d in expectation.
    """
    x, y = _points(x, "x"), _points(y, "y")
    _same_dimension(x, y)
    if projections < 1:
        raise ValueError(f"projections must be at least 1; received {projections}.")
    size = min(len(x), len(y))
    x, y = subsample(x, size, seed=seed), subsample(y, size, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(x.shape[1], projections, generator=generator, dtype=torch.float64)
    directions = directions / directions.norm(dim=0)
    total = 0.0
    for block in directions.split(PROJECTION_BLOCK, dim=1):
        gaps = (x @ block).sort(dim=0).values - (y @ block).sort(dim=0).values
        total += float(gaps.square().mean(dim=0).sum())
    return math.sqrt(total / projections)


def exact_w2(x: Tensor, y: Tensor) -> float:
    """Returns the Wasserstein-2 distance of samples (N, ...) and (M, ...), in their units.

    `W₂² = min_π Σ_ij π_ij ‖x_i − y_j‖²` over couplings π with marginals 1/N and 1/M, solved as an
    assignment by SciPy where N = M, else as a linear program by POT. Takes N·M·8 bytes and
    minutes beyond a few thousand points: draw fewer with `subsample`.
    """
    x, y = _points(x, "x"), _points(y, "y")
    _same_dimension(x, y)
    cost = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square().numpy()
    if len(x) != len(y):
        return _program_w2(cost)
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return math.sqrt(float(cost[rows, columns].mean()))


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Returns the squared Wasserstein-2 distance of Gaussians with the moments of (N, d), (M, d).

    `d² = ‖m_x − m_y‖² + tr(C_x + C_y − 2 (C_x^½ C_y C_x^½)^½)` with sample means m and unbiased
    covariances C (Dowson and Landau 1982, eq. 16; Heusel et al. 2017, eq. 6, call it FID when the
    features are Inception's). In the features' units squared. It is biased upwards, the more the
    fewer rows there are per dimension (Bińkowski et al. 2018): compare equal sizes only.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or min(len(x), len(y)) < 2:
        raise ValueError(
            "The Fréchet distance needs two samples (N, d) of at least two rows and the same d; "
            f"received {tuple(x.shape)} and {tuple(y.shape)}."
        )
    x, y = x.double(), y.double()
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("The Fréchet distance needs finite features.")
    gap = (x.mean(dim=0) - y.mean(dim=0)).square().sum()
    cov_x, cov_y = (torch.atleast_2d(torch.cov(sample.T)) for sample in (x, y))
    root = _root(cov_x)
    cross = torch.linalg.eigvalsh(root @ cov_y @ root).clamp(min=0).sqrt().sum()
    return max(0.0, float(gap + cov_x.trace() + cov_y.trace() - 2 * cross))


def subsample(x: Tensor, size: int, *, seed: int = 0) -> Tensor:
    """Draws `size` of the N rows of x without replacement; x itself when size >= N."""
    if size < 1:
        raise ValueError(f"A subsample needs a size of at least 1; received {size}.")
    if size >= len(x):
        return x
    return x[shuffled(len(x), seed)[:size].to(x.device)]


def label_histogram(labels: Tensor, classes: int) -> list[int]:
    """Counts the labels 0..classes-1 in `labels` (N,)."""
    if classes < 1:
        raise ValueError(f"A histogram needs at least 1 class; received classes={classes}.")
    if labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise ValueError(f"Labels must be integers; received dtype {labels.dtype}.")
    labels = labels.detach().cpu().long().flatten()
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(
            f"Labels must lie in 0..{classes - 1}; "
            f"received labels from {int(labels.min())} to {int(labels.max())}."
        )
    return [int(count) for count in torch.bincount(labels, minlength=classes)]


def _program_w2(cost: np.ndarray) -> float:
    try:
        import ot
    except ImportError as error:
        raise ValueError(
            f"Without POT exact_w2 needs samples of equal size; received {cost.shape[0]} and "
            f"{cost.shape[1]} points: cut the larger with subsample, or install POT."
        ) from error
    weights = [np.full(n, 1 / n) for n in cost.shape]
    squared, log = ot.emd2(*weights, cost, numItermax=10_000_000, log=True)
    if log["warning"] is not None:
        raise ValueError(
            f"Exact transport between {cost.shape[0]} and {cost.shape[1]} points did not finish: "
            f"{log['warning']} Draw fewer points with subsample."
        )
    return math.sqrt(max(0.0, float(squared)))


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def _points(x: Tensor, name: str) -> Tensor:
    if x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"{name} must hold at least one point in shape (N, d) or (N, C, H, W); "
            f"received shape {tuple(x.shape)}."
        )
    points = x.detach().to("cpu", torch.float64).flatten(1)
    if not bool(torch.isfinite(points).all()):
        raise ValueError(
            f"{name} holds values that are not finite; a distance needs finite points."
        )
    return points


def _same_dimension(x: Tensor, y: Tensor) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"Both samples must have the same dimension; received {x.shape[1]} and {y.shape[1]}."
        )
