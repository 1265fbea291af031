"""Fréchet distance between two samples seen as Gaussians."""

from __future__ import annotations

import torch
from torch import Tensor


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Squared Wasserstein-2 distance of the Gaussians with the samples' moments.

    `d² = ‖m_x − m_y‖² + tr(C_x + C_y − 2 (C_x^½ C_y C_x^½)^½)` with sample means m and unbiased
    covariances C (Dowson and Landau 1982, eq. 16; Heusel et al. 2017, eq. 6, call it FID when the
    features are Inception's). In the features' units squared. It is biased upwards, the more the
    fewer rows there are per dimension (Bińkowski et al. 2018): compare equal sizes only.

    Args:
        x: features (N, d), N >= 2.
        y: features (M, d), M >= 2.

    Raises:
        ValueError: fewer than two rows, different d, or values that are not finite.
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


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T
