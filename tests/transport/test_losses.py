from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from geomloss import SamplesLoss
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import Gaussian, Laplace, LocalMechanism, Stream
from fedsink.transport import (
    L1,
    AnnealedSolver,
    ConvergedSolver,
    GroundCost,
    Mixed,
    SinkhornLoss,
    SquaredEuclidean,
    batch_gradients,
    cost_named,
    potential,
    self_gradient,
    solve,
    transport_gradient,
)
from fedsink.transport.losses import assignment_gradient

from ..support.clouds import cloud
from ..support.oracles import semi_debiased

CONVERGED = ConvergedSolver(max_iterations=20000, tolerance=1e-12)
COSTS: list[GroundCost] = [L1(), SquaredEuclidean(), Mixed(0.5)]


def finite_differences(loss: Callable[[Tensor], float], x: Tensor, step: float = 1e-5) -> Tensor:
    gradient = torch.zeros_like(x)
    for index in range(x.numel()):
        offset = torch.zeros_like(x)
        offset.view(-1)[index] = step
        gradient.view(-1)[index] = (loss(x + offset) - loss(x - offset)) / (2.0 * step)
    return gradient


def transport(x: Tensor, y: Tensor, cost: GroundCost, lam: float) -> float:
    return float(solve(cost(x, y), lam, tolerance=1e-12, max_iterations=20000).dual_cost)


@pytest.mark.medium
@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("lam", [0.3, 3.0])
def test_gradient_equals_finite_differences_of_the_converged_dual(
    cost: GroundCost, lam: float
) -> None:
    x, y = cloud(6, 3, seed=1), cloud(8, 3, seed=2)
    result = transport_gradient(x, y, cost, lam, solver=CONVERGED)
    expected = finite_differences(lambda points: transport(points, y, cost, lam), x)
    torch.testing.assert_close(result.gradient, expected, rtol=1e-5, atol=1e-7)
    assert float(result.value) == pytest.approx(transport(x, y, cost, lam))


def test_gradient_of_weighted_points_is_that_of_the_weighted_measure() -> None:
    x, y, lam = cloud(5, 3, seed=3), cloud(6, 3, seed=4), 0.7
    log_a = cloud(5, 1, seed=5)[:, 0].log_softmax(0)
    log_b = cloud(6, 1, seed=6)[:, 0].log_softmax(0)

    def loss(points: Tensor) -> float:
        return float(
            solve(
                SquaredEuclidean()(points, y), lam, log_a=log_a, log_b=log_b, tolerance=1e-12,
                max_iterations=9999,
            ).dual_cost
        )  # fmt: skip

    result = transport_gradient(
        x, y, SquaredEuclidean(), lam, log_a=log_a, log_b=log_b, solver=CONVERGED
    )
    torch.testing.assert_close(result.gradient, finite_differences(loss, x), rtol=1e-5, atol=1e-7)


def test_no_graph_is_recorded() -> None:
    x = cloud(4, 3, seed=12).requires_grad_()
    result = transport_gradient(x, cloud(5, 3, seed=13), Mixed(1.0), 0.5)
    assert not result.value.requires_grad
    assert not result.gradient.requires_grad


def written_out(x: Tensor, y: Tensor, n: int, n_extra: int, cost: GroundCost, lam: float) -> float:
    """Definition 4.3, written out."""
    against_self = transport(x[:n], x[n_extra : n_extra + n], cost, lam)
    return 2.0 * transport(x[:n], y, cost, lam) - against_self


@pytest.mark.medium
@pytest.mark.parametrize("n_extra", [0, 1, 3, 5])
@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_semi_debiased_gradient_equals_finite_differences(cost: GroundCost, n_extra: int) -> None:
    n, lam = 5, 2.0
    x, y = cloud(n + n_extra, 3, seed=14), cloud(7, 3, seed=15)
    value, gradient = semi_debiased(x, y, n, cost, lam, solver=CONVERGED)
    assert gradient.shape == (n + n_extra, 3)
    assert float(value) == pytest.approx(written_out(x, y, n, n_extra, cost, lam))
    expected = finite_differences(lambda points: written_out(points, y, n, n_extra, cost, lam), x)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_extra", [0, 2, 6])
def test_the_published_loss_equals_autograd_through_geomloss(n_extra: int) -> None:
    n, lam, m = 6, 0.05, 1.0
    x, y = cloud(n + n_extra, 10, seed=18), cloud(8, 10, seed=19)

    def cost(first: Tensor, second: Tensor) -> Tensor:
        difference = first.unsqueeze(-2) - second.unsqueeze(-3)
        return difference.square().sum(-1) + m * difference.abs().sum(-1)

    loss = SamplesLoss(
        "sinkhorn", p=1, blur=lam, scaling=0.5, debias=False, cost=cost, backend="tensorized"
    )
    leaf = x.clone().requires_grad_()
    value = 2.0 * loss(leaf[:n], y) - loss(leaf[:n], leaf[n_extra : n_extra + n])
    (expected,) = torch.autograd.grad(value, leaf)
    result, gradient = semi_debiased(x, y, n, Mixed(m), lam, solver=AnnealedSolver())
    assert float(result) == pytest.approx(value.item(), abs=1e-8)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)


def test_an_empty_private_batch_has_zero_gradient() -> None:
    x, y = cloud(5, 3, seed=22), cloud(3, 3, seed=23)
    for solver in (CONVERGED, AnnealedSolver()):
        log_b = torch.full((3,), -math.inf, dtype=torch.float64)
        result = transport_gradient(x, y, Mixed(0.3), 0.5, log_b=log_b, solver=solver)
        assert result.gradient.abs().max() == 0.0
        assert float(result.value) == 0.0


@pytest.mark.parametrize("solver", [CONVERGED, AnnealedSolver()], ids=["converged", "annealed"])
def test_shared_points_and_padded_clients_equal_a_loop(solver: ConvergedSolver) -> None:
    x, sizes = cloud(6, 3, seed=31), (5, 2, 7)
    batches = [cloud(m, 3, seed=32 + m) for m in sizes]
    y = torch.full((3, 7, 3), 1e3, dtype=torch.float64)
    log_b = torch.full((3, 7), -math.inf, dtype=torch.float64)
    for k, batch in enumerate(batches):
        y[k, : len(batch)], log_b[k, : len(batch)] = batch, -math.log(len(batch))
    together = transport_gradient(x, y, Mixed(1.0), 0.5, log_b=log_b, solver=solver)
    assert together.gradient.shape == (3, 6, 3)
    for k, batch in enumerate(batches):
        alone = transport_gradient(x, batch, Mixed(1.0), 0.5, solver=solver)
        if isinstance(solver, AnnealedSolver):
            assert int(together.solution.iterations[k]) == int(alone.solution.iterations)
        torch.testing.assert_close(together.value[k], alone.value, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(together.gradient[k], alone.gradient, rtol=1e-7, atol=1e-9)


def test_wrong_numbers_of_rows_are_refused() -> None:
    x = cloud(6, 3, seed=28)
    with pytest.raises(ValueError, match="between n and 2n rows with n ≥ 1, got 6 rows and n=2"):
        self_gradient(x, 2, L1(), 0.5)


def test_a_public_diameter_fixes_the_number_of_iterations() -> None:
    near, far = cloud(5, 3, seed=29), 100.0 * cloud(5, 3, seed=30)
    counts = {
        int(transport_gradient(near, y, L1(), 0.1, solver=solver).solution.iterations)
        for y in (near, far)
        for solver in (AnnealedSolver(diameter=50.0),)
    }
    assert len(counts) == 1


def test_potentials_of_every_problem_have_mean_zero() -> None:
    """Other problems of the batch do not matter."""
    x, y = cloud(3, 6, 2, seed=21), cloud(3, 8, 2, seed=22)
    y[1] += 2.0
    f = potential(x, y, 0.5, solver=CONVERGED)
    for number in range(3):
        alone = potential(x[number], y[number], 0.5, solver=CONVERGED)
        torch.testing.assert_close(f[number], alone, rtol=1e-6, atol=1e-9)
        assert float(alone.mean()) == pytest.approx(0.0, abs=1e-12)


def test_a_batchs_gradient_is_twice_the_loss_and_its_own_part() -> None:
    x, y, public = cloud(5, 2, seed=23), cloud(2, 6, 2, seed=24), cloud(5, 2, seed=25)
    present = torch.arange(6) < torch.tensor([[6], [4]])
    found = batch_gradients(x, y, public, present, L1(), 0.5, CONVERGED)
    for number, size in enumerate((6, 4)):
        field = transport_gradient(x, y[number, :size], L1(), 0.5, solver=CONVERGED).gradient
        torch.testing.assert_close(found[number], 2.0 * field + public, rtol=1e-6, atol=1e-9)


# Exact transport, against closed forms


def clouds(n: int, d: int = 3) -> tuple[Tensor, Tensor]:
    return cloud(n, d, seed=n), cloud(n, d, seed=n + 1) + 0.5


@pytest.mark.parametrize("name", ["l1", "squared_l2"])
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


@pytest.mark.parametrize("name", ["l1", "squared_l2"])
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
@pytest.mark.parametrize("name", ["l1", "squared_l2"])
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


EXACT = ConvergedSolver(max_iterations=2000, tolerance=1e-12)


def pair(*batch: int) -> tuple[Tensor, Tensor]:
    """Two clouds of doubles, of 5 and 6 points in three dimensions."""
    generator = torch.Generator().manual_seed(5)
    x, y = (
        torch.randn(*batch, n, 3, dtype=torch.float64, generator=generator).requires_grad_()
        for n in (5, 6)
    )
    return x, y


@pytest.mark.medium
@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("cost", ["squared_l2", "l1", Mixed(0.5)])
def test_the_loss_has_the_gradient_of_finite_differences(
    cost: str | GroundCost, debias: bool
) -> None:
    loss = SinkhornLoss(cost, lam=1.0, debias=debias, solver=EXACT)
    assert torch.autograd.gradcheck(loss, pair(2), eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("debias", [False, True])
def test_the_loss_is_that_of_geomloss(debias: bool, batch: tuple[int, ...]) -> None:
    def absolute(a: Tensor, b: Tensor) -> Tensor:
        return (a.unsqueeze(-2) - b.unsqueeze(-3)).abs().sum(-1)

    options = {"blur": 0.8, "scaling": 0.99, "debias": debias}
    half = SamplesLoss("sinkhorn", p=2, **options)
    x, y = pair(*batch)
    for reference, cost, lam, factor in (
        (half, "squared_l2", 2 * 0.8**2, 2.0),
        (SamplesLoss("sinkhorn", p=1, cost=absolute, **options), "l1", 0.8, 1.0),
    ):
        expected = factor * reference(x, y)
        value = SinkhornLoss(cost, lam=lam, debias=debias, solver=EXACT)(x, y)
        torch.testing.assert_close(value, expected.reshape(batch), rtol=5e-3, atol=0.0)
        theirs, ours = (torch.autograd.grad(v.sum(), (x, y)) for v in (expected, value))
        for field, known in zip(ours, theirs, strict=True):
            assert (field - known).norm() < 0.02 * known.norm()


def test_equal_clouds_have_no_divergence_and_one_that_needs_no_gradient_gets_none() -> None:
    x, y = pair()
    loss = SinkhornLoss(lam=1.0, solver=EXACT)
    assert abs(loss(x, x.detach()).item()) < 1e-9
    loss(x, y.detach()).backward()
    assert x.grad is not None
    assert y.grad is None
    [first] = torch.autograd.grad(loss(x, y), x, create_graph=True)
    assert not first.requires_grad  # there is no second derivative


@pytest.mark.parametrize("mechanism", [Laplace(2.0, 6.0), Gaussian(2.0, 6.0, 1e-5)])
def test_the_loss_of_a_mechanism_finds_the_records_behind_its_noise(
    mechanism: LocalMechanism,
) -> None:
    loss = SinkhornLoss.matched_to(mechanism)
    assert not loss.debias
    private = torch.tensor([[-1.0], [1.0]]).repeat(1000, 1)
    noisy = mechanism.privatize(private, Stream(b"noise"))
    # Theorem 1: of all spreads ±s of the generated points, that of the records is the least.
    spreads = torch.linspace(0.2, 2.0, 19)
    values = [float(loss(spread * private[:200], noisy)) for spread in spreads]
    assert abs(float(spreads[values.index(min(values))]) - 1.0) < 0.25


X, Y = torch.zeros(2, 3), torch.ones(4, 3)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X[0], Y, "x must be a cloud"),
        (X, Y[:0], "y must be a cloud"),
        (X, Y[:, :2], "must agree"),
        (X, Y.expand(2, 4, 3), "must agree"),
        (X, Y.double(), "float64"),
        (X.half(), Y.half(), "float16: convert"),
        (X.long(), Y, "x must be float32"),
        (X, Y / 0 * 0, "y must be finite"),
        (X / 0, Y, "x must be finite"),
        (X, Y.to("meta"), "on one device.*float32 on meta"),
        (X.numpy(), Y, r"x must be a torch\.Tensor, received ndarray"),
        (X, Y.tolist(), r"y must be a torch\.Tensor, received list"),
    ],
)
def test_clouds_that_do_not_fit_are_named(x: Tensor, y: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SinkhornLoss(lam=1.0)(x, y)


@pytest.mark.parametrize("lam", [0, -1.0, float("nan"), float("inf"), "1", True, torch.ones(())])
def test_a_lambda_that_is_none_is_named(lam: Any) -> None:
    with pytest.raises(ValueError, match=r"lam is λ.*received .*lam=2\*b\*\*2"):
        SinkhornLoss(lam=lam)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cost": "l2"}, "l2.*squared_l2"),
        ({"cost": torch.cdist}, "cost is l1, squared_l2, mixed or a GroundCost, received <"),
        ({"cost": 0.1}, r"cost is .* received 0\.1"),
        ({"cost": SquaredEuclidean}, "cost is .* received <class"),
        ({"debias": "no"}, "debias is True or False, received 'no'"),
        ({"solver": "annealed"}, "solver is ConvergedSolver.*received 'annealed'"),
        ({"solver": AnnealedSolver}, "solver is ConvergedSolver.*received <class"),
    ],
)
def test_an_argument_that_is_none_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        SinkhornLoss(lam=1.0, **arguments)
    with pytest.raises(ValueError, match=r"mechanism is a Laplace or a Gaussian, received 0\.1"):
        SinkhornLoss.matched_to(0.1)  # type: ignore[arg-type]
