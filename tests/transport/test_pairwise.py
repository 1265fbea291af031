from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import (
    L1,
    GroundCost,
    Mixed,
    SquaredEuclidean,
    fixed_solver,
    losses,
    pairwise,
    transport_gradient,
)
from fedsink.transport.pairwise import sparse_field

from ..support.clouds import cloud

COSTS: list[GroundCost] = [L1(), Mixed(0.3), Mixed(0.0), SquaredEuclidean()]


def thin(plan: Tensor, share: int = 20) -> Tensor:
    """Keeps about one entry in `share` of a plan."""
    keep = torch.rand(plan.shape, generator=torch.Generator().manual_seed(5)) < 1.0 / share
    return plan * keep


@pytest.mark.medium
@given(
    n=st.integers(1, 30), m=st.integers(1, 30), d=st.integers(1, 8),
    block=st.sampled_from([1, 99]),
    x_batch=st.sampled_from([(), (3,), (2, 3)]),
    y_batch=st.sampled_from([(), (3,), (2, 3), (2, 1)]),
)  # fmt: skip
def test_the_sparse_gradient_equals_the_dense_one(
    n: int, m: int, d: int, block: int, x_batch: tuple, y_batch: tuple
) -> None:
    x, y = cloud(*x_batch, n, d, seed=1), cloud(*y_batch, m, d, seed=2)
    plan = thin(L1()(x, y))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise, "_PAIRS_PER_ENTRY", 0)
        patch.setattr(pairwise, "_BLOCK", block)
        for cost in COSTS:
            torch.testing.assert_close(
                cost.gradient(x, y, plan, sparse=True), cost.gradient(x, y, plan)
            )


def test_dense_plans_take_the_dense_kernels() -> None:
    x, y = cloud(20, 3, seed=3), cloud(30, 3, seed=4)
    plan = L1()(x, y)
    assert sparse_field(x, y, plan, quadratic=1.0, absolute=1.0) is None
    assert sparse_field(x, y, thin(plan, 60), quadratic=1.0, absolute=1.0) is not None
    assert sparse_field(x, y[:0], plan[:, :0], quadratic=1.0, absolute=1.0) is None


def test_a_solver_of_fixed_work_is_followed_by_dense_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags: list[bool] = []

    class Watched(Mixed):
        def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
            flags.append(sparse)
            return super().gradient(x, y, plan, sparse=sparse)

    x, y = cloud(6, 3, seed=5), cloud(6, 3, seed=6)
    fixed = fixed_solver("annealed", largest_cost=1e3, diameter=10.0)
    transport_gradient(x, y, Watched(), 0.5, solver=fixed)
    losses.self_gradient(x, 5, Watched(), 0.5, solver=fixed)
    transport_gradient(x, y, Watched(), 0.5)
    assert flags == [False, False, False, True]
