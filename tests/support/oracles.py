"""Oracles that compute in one piece what the package computes in parts or in batches."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport import GroundCost, Solver, self_gradient, transport_gradient
from fedsink.transport.clipped_sums import (
    check_field,
    matmul_keeps_the_bound,
    reduced,
    single_contribution,
    sum_by_matmul,
)


def clipped_record_field(x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float) -> Tensor:
    """Σ_j min(1, Δ/‖g_j‖)·g_j of records by themselves, (n, d) float64.

    `clipped_sums` decides by public bounds whether a matmul adds up all places of a problem; here
    each record decides for itself, so that one may change paths when another comes or goes.
    """
    check_field(x, y, f, lam, bound)
    x64, y64, f64 = (values.detach().to(torch.float64) for values in (x, y, f))
    field = torch.zeros_like(x64)
    rows = x64.isfinite().all(-1) & f64.isfinite()
    if not bool(rows.any()) or y.shape[0] == 0:
        return field
    x64, f64, clip = x64[rows], f64[rows], reduced(bound)
    plain = is_plain(x64, y64, f64, lam, clip)
    total = sum_by_matmul(x64, y64[plain], f64, lam, clip)
    for record in y64[~plain]:
        total += single_contribution(x64, record, f64, lam, clip)
    field[rows] = total
    return field


def is_plain(x: Tensor, y: Tensor, f: Tensor, lam: float, clip: float) -> Tensor:
    """Mask of records that matmul may sum, (m,); every other record is added by itself."""
    reach = y.square().sum(-1) + x.square().sum(-1).amax()
    return matmul_keeps_the_bound(reach, f.abs().amax(), len(y), x.shape[-1], lam, clip)


def semi_debiased(
    x: Tensor, y: Tensor, n: int, cost: GroundCost, lam: float, *, solver: Solver
) -> tuple[Tensor, Tensor]:
    """Ŝ = 2Ŵ(X[:n], Y) − Ŵ(X[:n], X[n′:n′+n]) (Cao et al. 2021, Def. 4.3), and ∂Ŝ/∂X."""
    server = self_gradient(x, n, cost, lam, solver=solver)
    clients = transport_gradient(x[:n], y, cost, lam, solver=solver)
    gradient = server.gradient.clone()
    gradient[:n] += 2.0 * clients.gradient
    return 2.0 * clients.value + server.value, gradient
