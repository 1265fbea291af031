"""Exact transport against what is known in closed form."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch

from fedsink.transport import ConvergedSolver, cost_named, transport_gradient
from fedsink.transport.solvers.exact import assignment_gradient

COSTS = ("l1", "squared_l2")


def clouds(n: int, d: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(n)
    return (
        torch.randn(n, d, generator=random, dtype=torch.float64),
        torch.randn(n, d, generator=random, dtype=torch.float64) + 0.5,
    )


@pytest.mark.parametrize("name", COSTS)
def test_no_permutation_is_cheaper(name: str) -> None:
    x, y = clouds(6)
    matrix = cost_named(name)(x, y)
    rows = torch.arange(6)
    cheapest = min(float(matrix[rows, list(order)].mean()) for order in permutations(range(6)))
    found = assignment_gradient(x, y, cost_named(name))
    assert float(found.value) == pytest.approx(cheapest, rel=1e-12)
    assert float(matrix[rows, found.assignment].mean()) == pytest.approx(cheapest, rel=1e-12)


def test_on_a_line_the_order_is_kept() -> None:
    """Monotone rearrangement: the optimum for every convex cost (Villani 2003, Th. 2.18)."""
    x, y = clouds(50, 1)
    found = assignment_gradient(x, y, cost_named("squared_l2"))
    assert torch.equal(
        x.flatten().argsort().argsort(), y[found.assignment].flatten().argsort().argsort()
    )


@pytest.mark.parametrize("name", COSTS)
def test_the_gradient_is_the_values(name: str) -> None:
    """Envelope theorem: the assignment does not move with a small step."""
    x, y = clouds(8)
    found = assignment_gradient(x, y, cost_named(name))
    step = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e-6
    ahead, behind = (
        float(assignment_gradient(x + sign * step, y, cost_named(name)).value) for sign in (1, -1)
    )
    assert (ahead - behind) / 2 == pytest.approx(float((found.gradient * step).sum()), rel=1e-5)


@pytest.mark.parametrize("lam", [0.03, 0.3])
@pytest.mark.parametrize("name", COSTS)
def test_regularised_transport_lies_above_it_by_at_most_its_entropy(name: str, lam: float) -> None:
    """W_0 ≤ W_λ ≤ W_0 + λ log n: the permutation is a candidate of W_λ, its KL is log n."""
    x, y = clouds(12)
    exact = float(assignment_gradient(x, y, cost_named(name)).value)
    entropic = transport_gradient(x, y, cost_named(name), lam, solver=ConvergedSolver(3000, 1e-6))
    assert exact <= float(entropic.value) + 1e-4
    assert float(entropic.value) <= exact + lam * math.log(12) + 1e-4


def test_clouds_that_have_no_assignment_are_refused() -> None:
    x, y = clouds(5)
    with pytest.raises(ValueError, match=r"same shape \(n, d\), got \(5, 3\) and \(4, 3\)"):
        assignment_gradient(x, y[:4], cost_named("l1"))
    with pytest.raises(ValueError, match="finite costs"):
        assignment_gradient(x * torch.nan, y, cost_named("l1"))
