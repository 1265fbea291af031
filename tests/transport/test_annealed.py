from __future__ import annotations

import math

import pytest
import torch
from geomloss import SamplesLoss
from torch import Tensor

from fedsink.transport import (
    L1,
    AnnealedSolver,
    GroundCost,
    Mixed,
    SquaredEuclidean,
    solve,
    transport_gradient,
)
from fedsink.transport.annealed import bounding_diameter, epsilon_schedule

from ..support.clouds import cloud


def written_out(cost: GroundCost) -> object:
    """The cost as GeomLoss wants it: batched and differentiable."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        if isinstance(cost, L1):
            return difference.abs().sum(-1)
        m = cost.m if isinstance(cost, Mixed) else 0.0
        return difference.square().sum(-1) + m * difference.abs().sum(-1)

    return function


@pytest.mark.parametrize("cost", [L1(), SquaredEuclidean(), Mixed(1.0)], ids=str)
@pytest.mark.parametrize(("lam", "scaling"), [(0.05, 0.5), (2.0, 0.5), (0.05, 0.9), (50.0, 0.5)])
def test_value_gradient_and_potentials_equal_geomloss(
    cost: GroundCost, lam: float, scaling: float
) -> None:
    x, y = cloud(20, 4, seed=1).requires_grad_(), cloud(15, 4, seed=2) + 1.0
    a = torch.softmax(cloud(20, 1, seed=3)[:, 0], 0)
    b = torch.softmax(cloud(15, 1, seed=4)[:, 0], 0)
    options = {
        "p": 1, "blur": lam, "scaling": scaling, "debias": False, "cost": written_out(cost),
        "backend": "tensorized",
    }  # fmt: skip
    value = SamplesLoss("sinkhorn", **options)(a, x, b, y)
    (gradient,) = torch.autograd.grad(value, x)
    f, g = SamplesLoss("sinkhorn", potentials=True, **options)(a, x.detach(), b, y)
    f, g = f.squeeze(0), g.squeeze(0)
    ours = transport_gradient(
        x.detach(), y, cost, lam, log_a=a.log(), log_b=b.log(), solver=AnnealedSolver(scaling)
    )
    assert float(ours.value) == pytest.approx(value.item(), abs=1e-9)
    torch.testing.assert_close(ours.gradient, gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.solution.f, f, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.solution.g, g, rtol=1e-9, atol=1e-9)


def test_geomloss_squared_exponent_maps_to_squared_schedule() -> None:
    # GeomLoss' p = 2: λ = blur², cost ½‖x − y‖², schedule of diameter² by scaling².
    x, y, blur = cloud(12, 4, seed=5), cloud(10, 4, seed=6), 0.4
    expected = SamplesLoss("sinkhorn", p=2, blur=blur, scaling=0.7, debias=False)(x, y)
    solver = AnnealedSolver(scaling=0.7**2, diameter=float(bounding_diameter(x, y)) ** 2)
    ours = solver(0.5 * SquaredEuclidean()(x, y), blur**2, points=(x, y))
    assert float(ours.potential_cost) == pytest.approx(expected.item(), abs=1e-9)


# The GeomLoss mapping table of the design notes, with scaling close to 1 so that both converge.
@pytest.mark.parametrize("sigma", [0.4, 1.3])
def test_laplace_cost_is_geomloss_with_an_explicit_l1_cost(sigma: float) -> None:
    x, y = cloud(40, 4, seed=7), cloud(50, 4, seed=8)
    reference = SamplesLoss(
        "sinkhorn", p=1, blur=sigma, scaling=0.99, debias=False, cost=written_out(L1())
    )(x, y)
    ours = solve(L1()(x, y), sigma, tolerance=1e-9, max_iterations=5000).dual_cost
    assert float(ours) == pytest.approx(reference.item(), rel=2e-4)
    euclidean = SamplesLoss("sinkhorn", p=1, blur=sigma, scaling=0.99, debias=False)(x, y)
    assert abs(euclidean.item() / float(ours) - 1.0) > 0.16


@pytest.mark.medium
@pytest.mark.parametrize("sigma", [0.4, 1.3])
def test_gaussian_cost_is_twice_geomloss(sigma: float) -> None:
    x, y = cloud(40, 4, seed=9), cloud(50, 4, seed=10)
    ours = solve(
        SquaredEuclidean()(x, y), 2 * sigma**2, tolerance=1e-9, max_iterations=5000
    ).dual_cost
    halved = SamplesLoss("sinkhorn", p=2, blur=sigma, scaling=0.999, debias=False)(x, y)
    full = SamplesLoss(
        "sinkhorn", p=2, blur=math.sqrt(2) * sigma, scaling=0.999, debias=False,
        cost=written_out(SquaredEuclidean()),
    )(x, y)  # fmt: skip
    assert float(ours) == pytest.approx(2.0 * halved.item(), rel=2e-4)
    assert float(ours) == pytest.approx(full.item(), rel=2e-4)


@pytest.mark.medium
def test_scaling_near_one_converges_and_one_half_does_not() -> None:
    x, y, lam = cloud(30, 20, seed=11), cloud(40, 20, seed=12), 0.05
    exact = transport_gradient(x, y, SquaredEuclidean(), lam).gradient.flatten()

    def cosine(scaling: float) -> float:
        gradient = transport_gradient(
            x, y, SquaredEuclidean(), lam, solver=AnnealedSolver(scaling)
        ).gradient.flatten()
        return float(torch.cosine_similarity(gradient, exact, 0))

    assert cosine(0.999) > 0.9999
    assert cosine(0.5) < 0.96


def test_a_batch_follows_each_problems_own_schedule() -> None:
    scales = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64).view(3, 1, 1)
    generator = torch.Generator().manual_seed(0)
    x = scales * torch.randn(3, 9, 2, generator=generator, dtype=torch.float64)
    y = scales * torch.randn(3, 8, 2, generator=generator, dtype=torch.float64)
    together = transport_gradient(x, y, L1(), 0.2, solver=AnnealedSolver())
    assert len(set(together.solution.iterations.tolist())) == 3
    for k in range(3):
        alone = transport_gradient(x[k], y[k], L1(), 0.2, solver=AnnealedSolver())
        assert int(alone.solution.iterations) == int(together.solution.iterations[k])
        torch.testing.assert_close(alone.value, together.value[k])
        torch.testing.assert_close(alone.gradient, together.gradient[k])


def test_source_and_target_plans_hold_their_marginals_exactly() -> None:
    x, y = cloud(9, 4, seed=15), cloud(7, 4, seed=16)
    solution = AnnealedSolver()(L1()(x, y), 0.05, points=(x, y))
    ninth, seventh = torch.full((9,), 1 / 9).double(), torch.full((7,), 1 / 7).double()
    torch.testing.assert_close(solution.source_plan.sum(1), ninth, rtol=1e-6, atol=0)
    torch.testing.assert_close(solution.target_plan.sum(0), seventh, rtol=1e-6, atol=0)
    assert float(solution.marginal_error) > 1e-3
    assert not bool(solution.converged)


def test_the_published_schedule_has_thirteen_values_and_the_two_ends() -> None:
    # z in [−1, 1]^784 with labels of weight 15: the box's diagonal is near 73.
    diameter = math.sqrt(784 * 4 + 10 * 15**2)
    schedule = epsilon_schedule(diameter, 0.05, 0.5)
    assert schedule[:3] == [diameter, diameter, diameter / 2]
    assert schedule[-1] == 0.05
    assert schedule[-2] > 0.05
    assert len(schedule) == 13


def test_coinciding_points_need_no_schedule() -> None:
    assert epsilon_schedule(0.0, 0.3, 0.5) == [0.3, 0.3]
    x = torch.ones(4, 2)
    result = transport_gradient(x, x, SquaredEuclidean(), 0.1, solver=AnnealedSolver())
    assert float(result.value) == pytest.approx(0.0, abs=1e-6)
    assert result.gradient.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        *(
            (AnnealedSolver(s, 1.0), f"between 0 and 1, got {s}")
            for s in (0.0, 1.0, -1.0, math.nan)
        ),
        *(
            (AnnealedSolver(diameter=d), rf"in units of cost, got \[{d}\]")
            for d in (-1.0, math.inf)
        ),
    ],
)
def test_an_invalid_schedule_is_refused(solver: AnnealedSolver, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solver(torch.rand(3, 3), 0.1, points=(torch.rand(3, 1),) * 2)
