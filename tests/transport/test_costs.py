from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport import (
    L1,
    GroundCost,
    Mixed,
    SquaredEuclidean,
    append_labels,
    cost_named,
    costs,
    fixed_solver,
    self_gradient,
    transport_gradient,
)

from ..support.clouds import cloud

COSTS: list[GroundCost] = [SquaredEuclidean(), L1(), Mixed(0.0), Mixed(0.3), Mixed(3.0)]


def definition(cost: GroundCost, x: Tensor, y: Tensor) -> Tensor:
    """The cost written out with an n×m×d difference."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    squared, absolute = difference.square().sum(-1), difference.abs().sum(-1)
    if isinstance(cost, L1):
        return absolute
    return squared + (cost.m if isinstance(cost, Mixed) else 0.0) * absolute


# Shapes on both sides of every switch in costs.py, batches that broadcast included.
SHAPES = [
    ((1, 1), (1, 1)),
    ((3, 5), (4, 5)),
    ((7, 784), (9, 784)),
    ((150, 6), (140, 6)),
    ((2, 5, 3), (2, 4, 3)),
    ((5, 3), (2, 4, 3)),
    ((3, 90, 2), (80, 2)),
]


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_cost_equals_its_definition(cost: GroundCost, shapes: tuple) -> None:
    x, y = cloud(*shapes[0], seed=1), cloud(*shapes[1], seed=2)
    matrix = cost(x, y)
    torch.testing.assert_close(matrix, definition(cost, x, y), rtol=1e-10, atol=1e-10)
    assert (matrix >= 0).all()


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradient_equals_autograd_of_the_definition(cost: GroundCost, shapes: tuple) -> None:
    x, y = cloud(*shapes[0], seed=1), cloud(*shapes[1], seed=2)
    plan = cloud(*cost(x, y).shape, seed=3).abs()
    x = x.expand(*plan.shape[:-2], *x.shape[-2:]).clone().requires_grad_()
    (expected,) = torch.autograd.grad((plan * definition(cost, x, y)).sum(), x)
    with torch.no_grad():
        gradient = cost.gradient(x, y, plan)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


def test_l1_gradient_of_equal_coordinates_is_zero() -> None:
    x = torch.tensor([[0.0, -1.0, 2.0]])
    y = torch.tensor([[0.0, 1.0, 2.0]])
    assert L1().gradient(x, y, torch.ones(1, 1)).tolist() == [[0.0, -1.0, 0.0]]


def test_squared_distance_of_equal_points_is_not_negative() -> None:
    x = 100.0 + cloud(200, 30, seed=6, dtype=torch.float32)
    assert SquaredEuclidean()(x, x).min() >= 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_cost_of_huge_points_saturates_and_stays_finite(
    cost: GroundCost, dtype: torch.dtype
) -> None:
    huge = torch.finfo(dtype).max / 4
    x = torch.tensor([[huge, -huge, huge], [1.0, 2.0, 3.0]], dtype=dtype)
    y = torch.tensor([[-huge, huge, huge], [1.0, 2.0, 5.0]], dtype=dtype)
    matrix = cost(x, y)
    assert matrix.isfinite().all()
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix[1, 1], definition(cost, x[1:], y[1:])[0, 0])


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_cost_of_non_finite_points_is_nan_and_only_theirs(cost: GroundCost) -> None:
    x = torch.tensor([[float("inf"), 0.0], [1.0, 2.0]])
    y = torch.tensor([[0.0, 0.0], [float("nan"), 1.0]])
    assert cost(x, y).isnan().tolist() == [[True, True], [False, True]]


@pytest.mark.medium
@given(
    n=st.integers(1, 40), m=st.integers(1, 40), d=st.integers(1, 12), tile=st.sampled_from([1, 64])
)
def test_blocks_do_not_change_the_l1_cost_or_field(n: int, m: int, d: int, tile: int) -> None:
    x, y, plan = cloud(n, d, seed=7), cloud(m, d, seed=8), cloud(n, m, seed=9)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_COORDINATE_TILE", "_ROW_TILE", "_BACKWARD_TILE"):
            patch.setattr(costs, name, tile)
        patch.setattr(costs, "_MANY_PAIRS", 256)
        blocked, field = L1()(x, y), L1().gradient(x, y, plan)
    torch.testing.assert_close(blocked, definition(L1(), x, y))
    signs = (x.unsqueeze(-2) - y.unsqueeze(-3)).sign()
    torch.testing.assert_close(field, torch.einsum("ij,ijk->ik", plan, signs))


def test_empty_measures_have_empty_costs() -> None:
    x, none = cloud(3, 2), cloud(0, 2)
    for cost in COSTS:
        assert cost(x, none).shape == (3, 0)
        assert cost.gradient(x, none, torch.zeros(3, 0).double()).abs().sum() == 0.0


def test_append_labels_adds_the_mismatch_cost_of_the_paper() -> None:
    x = append_labels(torch.zeros(2, 3), torch.tensor([0, 2]), classes=4, weight=15.0)
    assert x.shape == (2, 7)
    m = 0.3
    matrix = Mixed(m)(x, x)
    assert matrix[0, 0] == 0.0
    assert matrix[0, 1] == pytest.approx(2 * 15.0**2 + 2 * m * 15.0)


def test_cost_named_returns_each_cost_and_lists_them_otherwise() -> None:
    assert cost_named("l1") == L1()
    assert cost_named("squared_l2") == SquaredEuclidean()
    assert cost_named("mixed", m=0.3) == Mixed(0.3)
    with pytest.raises(ConfigError, match='Unknown cost "l3": choose one of l1, squared_l2, mixed'):
        cost_named("l3")


@pytest.mark.parametrize("m", [-1.0, float("nan"), float("inf")])
def test_mixed_refuses_an_invalid_weight(m: float) -> None:
    with pytest.raises(ConfigError, match=f"finite number ≥ 0, got {m}"):
        Mixed(m)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"in 0\.\.2, got values from -1 to 3"):
        append_labels(torch.zeros(2, 1), torch.tensor([-1, 3]), classes=3, weight=1.0)
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) for points of shape \(2, 1\)"):
        append_labels(torch.zeros(2, 1), torch.tensor([0, 1, 2]), classes=3, weight=1.0)


def test_points_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same d, got \(3, 2\) and \(4, 3\)"):
        L1()(cloud(3, 2), cloud(4, 3))
    with pytest.raises(ValueError, match=r"got torch\.float64 and torch\.float32"):
        SquaredEuclidean()(cloud(3, 2), cloud(4, 2, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 3, 4\) to match the points, got"):
        L1().gradient(cloud(3, 2), cloud(4, 2), torch.zeros(4, 3).double())


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("shift", [0.0, 1e3, -1e4])
def test_costs_and_gradients_in_float32_do_not_depend_on_where_the_clouds_lie(
    cost: GroundCost, shift: float
) -> None:
    """Both are compared with the same float32 points in float64."""
    x, y = (cloud(n, 4, seed=n).float() + shift for n in (30, 40))
    exact = definition(cost, x.double(), y.double())
    torch.testing.assert_close(cost(x, y).double(), exact, rtol=1e-5, atol=1e-5)
    plan = torch.full((30, 40), 1 / 1200)
    of_exact = cost.gradient(x.double(), y.double(), plan.double())
    torch.testing.assert_close(cost.gradient(x, y, plan).double(), of_exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_one_record_does_not_change_another_ones_costs(cost: GroundCost) -> None:
    x, y = cloud(30, 4, seed=1).float(), cloud(40, 4, seed=2).float()
    other = y.clone()
    other[-1] = 1e6
    assert torch.equal(cost(x, y)[:, :-1], cost(x, other)[:, :-1])


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
        patch.setattr(costs, "_PAIRS_PER_ENTRY", 0)
        patch.setattr(costs, "_BLOCK", block)
        for cost in COSTS:
            torch.testing.assert_close(
                cost.gradient(x, y, plan, sparse=True), cost.gradient(x, y, plan)
            )


def test_dense_plans_take_the_dense_kernels() -> None:
    x, y = cloud(20, 3, seed=3), cloud(30, 3, seed=4)
    plan = L1()(x, y)
    assert costs.sparse_field(x, y, plan, quadratic=1.0, absolute=1.0) is None
    assert costs.sparse_field(x, y, thin(plan, 60), quadratic=1.0, absolute=1.0) is not None
    assert costs.sparse_field(x, y[:0], plan[:, :0], quadratic=1.0, absolute=1.0) is None


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
    self_gradient(x, 5, Watched(), 0.5, solver=fixed)
    transport_gradient(x, y, Watched(), 0.5)
    assert flags == [False, False, False, True]
