from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedsink.transport import (
    SquaredEuclidean,
    potential,
    record_field,
    record_norms,
    row_weights,
    transport_gradient,
)
from fedsink.transport.semidual import masked_row_weights
from fedsink.transport.solvers.solver import ConvergedSolver

from ..support.clouds import cloud


def contributions(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """g_j = (w_ij (x_i − y_j))_i written out, (m, n, d)."""
    return w.T.unsqueeze(-1) * (x.unsqueeze(0) - y.unsqueeze(1))


def test_row_weights_are_a_softmax_over_rows() -> None:
    f, cost, lam = (
        cloud(5, 1, seed=1)[:, 0],
        SquaredEuclidean()(cloud(5, 4), cloud(7, 4, seed=2)),
        0.6,
    )
    w = row_weights(f, cost, lam)
    expected = torch.exp((f[:, None] - cost) / lam)
    torch.testing.assert_close(w, expected / expected.sum(0))
    torch.testing.assert_close(row_weights(f + 5.0, cost, lam), w)


def test_masked_row_weights_are_those_of_the_rows_left() -> None:
    f, cost = cloud(5, 1, seed=1)[:, 0], SquaredEuclidean()(cloud(5, 4), cloud(7, 4, seed=2))
    mask = torch.ones(5, 7, dtype=torch.bool)
    torch.testing.assert_close(masked_row_weights(f, cost, 0.6, mask), row_weights(f, cost, 0.6))
    mask[[1, 3]] = False
    mask[:, 2] = False
    w = masked_row_weights(f, cost, 0.6, mask)
    left = torch.tensor([0, 2, 4])
    columns = torch.tensor([0, 1, 3, 4, 5, 6])
    torch.testing.assert_close(
        w[left][:, columns], row_weights(f[left], cost[left][:, columns], 0.6)
    )
    assert float(w[~mask].abs().max()) == 0.0
    tiny = masked_row_weights(f, cost, 1e-4, ~torch.zeros_like(mask))
    assert float(tiny.min()) == pytest.approx(math.exp(-300.0))  # raised, not underflowed
    assert bool((tiny.sum(0) == 1.0).all())


def test_one_records_weights_do_not_depend_on_the_others() -> None:
    f, cost = cloud(5, 1, seed=3)[:, 0], SquaredEuclidean()(cloud(5, 4), cloud(7, 4, seed=4))
    all_weights = row_weights(f, cost, 0.6)
    for j in range(7):
        alone = row_weights(f, cost[:, j : j + 1], 0.6)
        torch.testing.assert_close(all_weights[:, j], alone[:, 0], rtol=1e-14, atol=0)


def test_field_and_norms_equal_the_contributions_written_out() -> None:
    x, y = cloud(6, 4, seed=5), cloud(9, 4, seed=6)
    w = row_weights(cloud(6, 1, seed=7)[:, 0], SquaredEuclidean()(x, y), 2.0)
    g = contributions(x, y, w)
    torch.testing.assert_close(record_field(x, y, w), g.sum(0))
    norms = record_norms(w, SquaredEuclidean()(x, y))
    torch.testing.assert_close(norms, g.flatten(1).norm(dim=1))


def test_field_is_half_the_gradient_of_the_semi_dual() -> None:
    x, y, lam = cloud(6, 4, seed=8).requires_grad_(), cloud(9, 4, seed=9), 1.5
    f = cloud(6, 1, seed=10)[:, 0]
    distances = (x.unsqueeze(1) - y).square().sum(-1)
    value = -lam * torch.logsumexp((f.unsqueeze(1) - distances) / lam, 0).sum()
    (gradient,) = torch.autograd.grad(value, x)
    with torch.no_grad():
        field = record_field(x, y, row_weights(f, SquaredEuclidean()(x, y), lam))
    torch.testing.assert_close(2.0 * field, gradient)


def test_with_the_optimal_potential_the_field_is_the_transport_gradient() -> None:
    # At the optimum of X against Y itself, P_ij = w_ij/m: ∂W/∂x = (2/m)·field.
    x, y, lam = cloud(6, 4, seed=11), cloud(9, 4, seed=12), 1.0
    solver = ConvergedSolver(max_iterations=9999, tolerance=1e-12)
    f = potential(x, y, lam, solver=solver)
    field = record_field(x, y, row_weights(f, SquaredEuclidean()(x, y), lam))
    expected = transport_gradient(x, y, SquaredEuclidean(), lam, solver=solver).gradient
    torch.testing.assert_close(2.0 / 9.0 * field, expected, rtol=1e-7, atol=1e-9)


def test_potential_has_mean_zero() -> None:
    x = 30.0 + cloud(8, 4, seed=13)
    f = potential(x, cloud(20, 4, seed=14), 0.5)
    assert float(f.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(f.abs().max()) > 0.1
