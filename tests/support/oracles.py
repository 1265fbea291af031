"""Oracles that compute in one piece what the package computes in parts or in batches."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport import GroundCost, Solver, self_gradient, transport_gradient
from fedsink.transport.clipped_sums import reduced


def clipped_record_field(x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float) -> Tensor:
    """Σ_j min(1, Δ/‖g_j‖)·g_j of records (m, d) at points (n, d), written out, float64."""
    difference = x.double().unsqueeze(1) - y.double()
    scores = (f.double().unsqueeze(1) - difference.square().sum(-1)) / lam
    contributions = torch.softmax(scores, 0).unsqueeze(-1) * difference
    lengths = contributions.square().sum((0, 2)).sqrt()
    return (contributions * (reduced(bound) / lengths).clamp(max=1.0).unsqueeze(-1)).sum(1)


def semi_debiased(
    x: Tensor, y: Tensor, n: int, cost: GroundCost, lam: float, *, solver: Solver
) -> tuple[Tensor, Tensor]:
    """Ŝ = 2Ŵ(X[:n], Y) − Ŵ(X[:n], X[n′:n′+n]) (Cao et al. 2021, Def. 4.3), and ∂Ŝ/∂X."""
    server = self_gradient(x, n, cost, lam, solver=solver)
    clients = transport_gradient(x[:n], y, cost, lam, solver=solver)
    gradient = server.gradient.clone()
    gradient[:n] += 2.0 * clients.gradient
    return 2.0 * clients.value + server.value, gradient
