from __future__ import annotations

import math
from itertools import product

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import L1, ConvergedSolver, SquaredEuclidean, iterations, solve
from fedsink.transport.problem import prepare

from ..support.clouds import cloud

DOMAINS = ["auto", "log", "exp"]


def simplex(n: int, seed: int) -> Tensor:
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (weights + 0.05) / (weights + 0.05).sum()


@pytest.mark.parametrize("domain", DOMAINS)
def test_diracs_cost_their_distance(domain: str) -> None:
    solution = solve(torch.tensor([[7.5]]), 0.3, domain=domain)
    assert float(solution.primal_cost) == pytest.approx(7.5)
    assert float(solution.regularised_cost) == pytest.approx(7.5)
    assert float(solution.dual_cost) == pytest.approx(7.5)
    assert bool(solution.converged)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_lambda_finds_the_permutation(domain: str, dtype: torch.dtype) -> None:
    # Points far apart from each other and shuffled: each goes to its own copy.
    x = 10.0 * torch.arange(12.0, dtype=dtype).unsqueeze(-1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    solution = solve(SquaredEuclidean()(x, x[order] + 0.5), 0.5, domain=domain, tolerance=1e-6)
    permutation = torch.zeros(12, 12, dtype=dtype)
    permutation[order, torch.arange(12)] = 1.0 / 12.0
    torch.testing.assert_close(solution.plan, permutation, rtol=1e-5, atol=1e-6)
    assert float(solution.primal_cost) == pytest.approx(0.25, abs=1e-4)


def test_gaussians_on_a_grid_have_the_closed_form() -> None:
    # Janati et al. 2020, Thm. 1, in one dimension: for N(0, s²) and N(μ, t²), cost (x − y)² and
    # λ·KL, with D = (4s²t² + λ²/4)^½:
    # W = μ² + s² + t² − D + λ/2 + (λ/2)·log((D + λ/2)/λ), and Cov = (D − λ/2)/2.
    s, t, mean, lam = 0.8, 1.3, 0.4, 0.7
    grid = torch.linspace(-9.0, 9.0, 700, dtype=torch.float64).unsqueeze(-1)

    def density(mu: float, sigma: float) -> Tensor:
        return torch.log_softmax(-0.5 * ((grid[:, 0] - mu) / sigma).square(), 0)

    solution = solve(
        SquaredEuclidean()(grid, grid),
        lam,
        log_a=density(0.0, s),
        log_b=density(mean, t),
        tolerance=1e-10,
        max_iterations=5000,
    )
    root = math.sqrt(4 * s**2 * t**2 + lam**2 / 4)
    covariance = (root - lam / 2) / 2
    information = -0.5 * math.log(1.0 - (covariance / (s * t)) ** 2)
    primal = mean**2 + s**2 + t**2 - 2 * covariance
    assert float(solution.primal_cost) == pytest.approx(primal, rel=1e-6)
    assert float(solution.regularised_cost) == pytest.approx(primal + lam * information, rel=1e-6)
    closed = mean**2 + s**2 + t**2 - root + lam / 2 + lam / 2 * math.log((root + lam / 2) / lam)
    assert float(solution.dual_cost) == pytest.approx(closed, rel=1e-6)
    centred = grid - torch.tensor([0.0])
    moment = (solution.plan * centred * (grid[:, 0] - mean)).sum()
    assert float(moment) == pytest.approx(covariance, rel=1e-6)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("lam", [0.1, 1.0, 20.0])
def test_plan_equals_pot(domain: str, lam: float) -> None:
    a, b = simplex(25, 1), simplex(30, 2)
    cost = SquaredEuclidean()(cloud(25, 3, seed=3), cloud(30, 3, seed=4))
    expected = ot.sinkhorn(a, b, cost, lam, method="sinkhorn_log", numItermax=20000, stopThr=1e-12)
    solution = solve(
        cost, lam, log_a=a.log(), log_b=b.log(), tolerance=1e-10, max_iterations=20000,
        domain=domain,
    )  # fmt: skip
    torch.testing.assert_close(solution.plan, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.medium
def test_primal_cost_tends_to_unregularised_transport() -> None:
    a, b = simplex(20, 5), simplex(15, 6)
    cost = L1()(cloud(20, 3, seed=7), cloud(15, 3, seed=8))
    exact = float(ot.emd2(a.numpy(), b.numpy(), cost.numpy()))
    solution = solve(cost, 1e-3, log_a=a.log(), log_b=b.log(), max_iterations=20000, tolerance=1e-5)
    assert float(solution.primal_cost) == pytest.approx(exact, rel=1e-3)
    assert float(solution.dual_cost) >= exact - 1e-9


@pytest.mark.medium
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    ("lam", "dtype", "near"),
    [
        *((lam, torch.float64, 1e-9) for lam in (0.01, 0.1, 1.0)),
        *((lam, torch.float32, 1e-4) for lam in (0.1, 1.0)),
    ],
)
def test_problems_of_a_batch_do_not_influence_each_other(
    domain: str, lam: float, dtype: torch.dtype, near: float
) -> None:
    """A client's answer would tell of another client's records."""
    cost = SquaredEuclidean()(cloud(12, 3, seed=1), cloud(10, 3, seed=2)).to(dtype)
    costs = torch.stack([cost * 10.0**power for power in range(-3, 6)]).reshape(3, 3, 12, 10)
    together = solve(costs, lam, domain=domain)
    assert together.f.shape == (3, 3, 12)
    assert len(together.iterations.unique()) > 2
    for place in product(range(3), range(3)):
        alone = solve(costs[place], lam, domain=domain)
        assert int(together.iterations[place]) == int(alone.iterations)
        assert bool(together.converged[place]) == bool(alone.converged)
        for name in ("f", "g", "plan"):
            found, expected = getattr(together, name)[place], getattr(alone, name)
            torch.testing.assert_close(found, expected, rtol=near, atol=near)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("lam", [1e-4, 0.05, 5.0])
def test_padding_gives_the_unpadded_result(domain: str, lam: float) -> None:
    a, b = simplex(12, 9), simplex(10, 10)
    cost = SquaredEuclidean()(cloud(12, 3, seed=11), cloud(10, 3, seed=12))
    options = {"tolerance": 1e-8, "max_iterations": 400, "domain": domain}
    plain = solve(cost, lam, log_a=a.log(), log_b=b.log(), **options)
    padded_cost = torch.full((15, 14), 1e9, dtype=torch.float64)
    padded_cost[12:] = float("nan")
    rows, columns = torch.arange(15) < 12, torch.arange(14) % 7 < 5
    padded_cost[:12, columns] = cost
    log_a, log_b = torch.full((15,), -math.inf), torch.full((14,), -math.inf)
    log_a, log_b = log_a.double(), log_b.double()
    log_a[rows], log_b[columns] = a.log(), b.log()
    padded = solve(padded_cost, lam, log_a=log_a, log_b=log_b, **options)
    torch.testing.assert_close(padded.f[rows], plain.f, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(padded.g[columns], plain.g, rtol=1e-9, atol=1e-9)
    assert padded.f[~rows].tolist() == [0.0] * 3
    assert padded.g[~columns].tolist() == [0.0] * 4
    assert padded.plan[~rows].sum() == padded.plan[:, ~columns].sum() == 0.0
    torch.testing.assert_close(padded.plan[:12, columns], plain.plan, rtol=1e-7, atol=1e-9)
    for number in ("primal_cost", "regularised_cost", "dual_cost", "marginal_error"):
        assert float(getattr(padded, number)) == pytest.approx(
            float(getattr(plain, number)), abs=1e-9
        )
    assert int(padded.iterations) == int(plain.iterations)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_measure_of_padding_alone_has_no_plan_and_no_nan(domain: str) -> None:
    cost = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    log_b = torch.full((3, 5), -math.log(5.0))
    log_b[1] = -math.inf
    solution = solve(cost, 0.1, log_b=log_b, domain=domain)
    assert solution.converged.tolist() == [True, False, True]
    assert solution.iterations[1] == 0
    assert solution.plan[1].abs().sum() == solution.f[1].abs().sum() == 0.0
    for number in ("plan", "primal_cost", "regularised_cost", "dual_cost", "potential_cost"):
        assert getattr(solution, number).isfinite().all()
    alone = solve(cost[2], 0.1, domain=domain)
    torch.testing.assert_close(solution.plan[2], alone.plan)


@pytest.mark.parametrize("domain", DOMAINS)
def test_exchanging_the_measures_transposes_the_plan(domain: str) -> None:
    a, b = simplex(8, 13), simplex(9, 14)
    cost = L1()(cloud(8, 3, seed=15), cloud(9, 3, seed=16))
    options = {"tolerance": 1e-11, "max_iterations": 5000, "domain": domain}
    forward = solve(cost, 0.5, log_a=a.log(), log_b=b.log(), **options)
    backward = solve(cost.T, 0.5, log_a=b.log(), log_b=a.log(), **options)
    torch.testing.assert_close(forward.plan, backward.plan.T, rtol=1e-8, atol=1e-11)
    assert float(forward.dual_cost) == pytest.approx(float(backward.dual_cost))


@pytest.mark.medium
@given(
    log_lam=st.floats(-6.0, 6.0),
    log_scale=st.floats(-6.0, 6.0),
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    seed=st.integers(0, 1000),
    domain=st.sampled_from(DOMAINS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    padded=st.booleans(),
)
def test_no_lambda_and_no_cost_give_nan(
    log_lam: float, log_scale: float, n: int, m: int, seed: int, domain: str,
    dtype: torch.dtype, padded: bool,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    cost = 10.0**log_scale * torch.randn(n, m, generator=generator, dtype=dtype).square()
    log_b = None
    if padded and m > 1:
        log_b = torch.full((m,), -math.log(m - 1), dtype=dtype)
        log_b[seed % m] = -math.inf
    solution = solve(cost, 10.0**log_lam, log_b=log_b, domain=domain, max_iterations=60)
    for number in ("f", "g", "plan", "dual_cost", "primal_cost", "marginal_error"):
        assert getattr(solution, number).isfinite().all(), number
    # Columns hold by construction, as far as (f + g − C)/λ can be resolved in the dtype.
    resolution = float(cost.max()) / 10.0**log_lam * torch.finfo(dtype).eps
    if resolution < 1e-3:
        columns = solution.plan.sum(-2) - solution.log_b.exp()
        assert float(columns.abs().sum()) <= 1e-4 + 20.0 * resolution


@pytest.mark.medium
@pytest.mark.parametrize("lam", [0.02, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("cost", [L1(), SquaredEuclidean()], ids=str)
def test_exp_domain_equals_log_domain_in_float32(lam: float, cost: L1 | SquaredEuclidean) -> None:
    matrix = cost(cloud(60, 8, seed=17, dtype=torch.float32), cloud(50, 8, seed=18).float())
    exp = solve(matrix, lam, domain="exp", tolerance=1e-4, max_iterations=3000)
    log = solve(matrix.double(), lam, domain="log", tolerance=1e-4, max_iterations=3000)
    assert bool(exp.converged) == bool(log.converged)
    assert float((exp.plan.double() - log.plan).abs().sum()) < 3e-3
    assert float(exp.dual_cost) == pytest.approx(float(log.dual_cost), rel=1e-4)


@pytest.mark.parametrize("domain", DOMAINS)
def test_it_stops_at_the_tolerance_and_says_so(domain: str) -> None:
    cost = SquaredEuclidean()(cloud(40, 3, seed=19), cloud(40, 3, seed=20) + 1.0)
    loose = solve(cost, 0.3, tolerance=1e-1, domain=domain)
    tight = solve(cost, 0.3, tolerance=1e-6, domain=domain)
    capped = solve(cost, 0.3, tolerance=1e-6, max_iterations=5, domain=domain)
    assert bool(loose.converged)
    assert bool(tight.converged)
    assert not bool(capped.converged)
    assert int(capped.iterations) == 5
    assert int(loose.iterations) < int(tight.iterations)
    assert float(loose.marginal_error) <= 1e-1 + 1e-9
    assert float(tight.marginal_error) <= 1e-6 + 1e-9
    assert float(capped.marginal_error) > 1e-6


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fraction", [1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_potentials_coarser_than_lambda_have_not_converged(
    domain: str, dtype: torch.dtype, fraction: float
) -> None:
    cost = SquaredEuclidean()(cloud(30, 4, seed=25), cloud(25, 4, seed=26) + 1.0).to(dtype)
    lam = fraction * torch.finfo(dtype).eps * float(cost.max() - cost.min())
    assert not bool(solve(cost, lam, 200, 1e-2, domain=domain).converged)


@pytest.mark.parametrize("domain", DOMAINS)
def test_what_has_converged_is_as_near_as_it_says_where_a_constant_hides_the_cost(
    domain: str,
) -> None:
    near = SquaredEuclidean()(cloud(12, 3, seed=27), cloud(10, 3, seed=28)).float()
    batch = torch.stack([near, near + 1e6])
    solution = solve(batch, 0.3, tolerance=1e-3, domain=domain)
    assert solution.converged.tolist() == [True, False]
    assert float(solution.marginal_error[0]) <= 2e-3
    assert float(solution.marginal_error[1]) > 0.01


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("iterations", [1, 2, 3, 7])
def test_zero_tolerance_runs_exactly_the_iterations(domain: str, iterations: int) -> None:
    cost = SquaredEuclidean()(cloud(10, 3, seed=21), cloud(12, 3, seed=22))
    solution = solve(cost, 1.0, tolerance=0.0, max_iterations=iterations, domain=domain)
    assert int(solution.iterations) == iterations
    assert not bool(solution.converged)


@pytest.mark.parametrize("domain", ["log", "exp"])
def test_one_iteration_is_one_of_the_textbook(domain: str) -> None:
    # f = softmin(g), then g = softmin(f), from zero or from a pair of hard c-transforms.
    cost, lam = SquaredEuclidean()(cloud(6, 3, seed=23), cloud(7, 3, seed=24)), 0.7
    start = (cost - cost.amin(1, keepdim=True)).amin(0)
    g0 = start if domain == "exp" else torch.zeros_like(start)
    f = -lam * torch.logsumexp((g0 - cost) / lam - math.log(7), 1)
    g = -lam * torch.logsumexp((f[:, None] - cost) / lam - math.log(6), 0)
    solution = solve(cost, lam, max_iterations=1, domain=domain)
    torch.testing.assert_close(solution.f, f)
    torch.testing.assert_close(solution.g, g)


def test_the_exp_domain_absorbs_and_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = SquaredEuclidean()(cloud(20, 3, seed=28), cloud(20, 3, seed=29) + 2.0)
    expected = solve(cost, 0.4, domain="log", tolerance=1e-7, max_iterations=20000)
    absorptions: list[int] = []
    absorb = iterations._Kernel.absorb

    def counted(kernel: iterations._Kernel, g: Tensor | None) -> None:
        absorptions.append(1)
        absorb(kernel, g)

    monkeypatch.setattr(iterations._Kernel, "absorb", counted)
    limits = {torch.float64: iterations._Limits(-450.0, 1e3)}
    monkeypatch.setattr(iterations, "_LIMITS", limits)
    for most in (20, 1):
        absorptions.clear()
        monkeypatch.setattr(iterations, "_MOST_ABSORPTIONS", most)
        solution = solve(cost, 0.4, domain="exp", tolerance=1e-7, max_iterations=20000)
        assert bool(solution.converged)
        assert 1 < len(absorptions) < 20 if most == 20 else len(absorptions) == 1
        torch.testing.assert_close(solution.plan, expected.plan, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padded", [False, True])
def test_the_absorbed_kernel_has_no_empty_row_and_no_subnormal_entry(
    dtype: torch.dtype, padded: bool
) -> None:
    cost = 100.0 * SquaredEuclidean()(
        cloud(20, 3, seed=31, dtype=dtype), cloud(25, 3, seed=32).to(dtype)
    )
    log_b = torch.full((25,), -math.log(25.0 - 3 * padded), dtype=dtype)
    log_b[: 3 * padded] = -math.inf
    problem = prepare(cost, 0.05, None, log_b)
    kernel = iterations._Kernel(problem, iterations._LIMITS[dtype])
    kernel.absorb(cloud(25, 1, seed=33)[:, 0].to(dtype).unsqueeze(0))
    entries = kernel._kernel[0, :, 3 * padded :]
    assert float(entries.min()) >= 2.0**20 * torch.finfo(dtype).tiny
    torch.testing.assert_close(entries.amax(1), torch.ones(20, dtype=dtype), rtol=1e-1, atol=0)
    torch.testing.assert_close(entries.amax(0).max(), torch.ones((), dtype=dtype))


@pytest.mark.medium
def test_auto_works_where_the_naive_kernel_underflows() -> None:
    # Costs near 740 at λ = 0.05, DP-Sinkhorn's setting: exp(−C/λ) is zero everywhere.
    cost = 740.0 + 60.0 * cloud(50, 60, seed=30, dtype=torch.float32)
    assert float(torch.exp(-cost / 0.05).max()) == 0.0
    solution = solve(cost, 0.05, max_iterations=2000, tolerance=1e-2)
    exact = float(ot.emd2(np.full(50, 1 / 50), np.full(60, 1 / 60), cost.double().numpy()))
    assert float(solution.primal_cost) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lam": 0.0}, "positive finite number in units of cost, got 0.0"),
        ({"lam": float("nan")}, "positive finite number in units of cost, got nan"),
        ({"max_iterations": 0}, "got max_iterations=0"),
        ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"domain": "linear"}, 'must be "auto", "log" or "exp", got "linear"'),
        ({"log_a": torch.zeros(3)}, r"exp\(log_a\) must sum to 1 in each problem, got a sum of 3"),
        ({"log_b": torch.full((4,), math.nan)}, r"exp\(log_b\) must sum to 1 .* sum of nan"),
        ({"log_b": torch.zeros(5)}, r"log_b must have a shape that expands to \(4,\), got \(5,\)"),
        ({"cost_matrix": torch.zeros(0, 4)}, r"n, m ≥ 1 in float32 or float64, got shape \(0, 4\)"),
        ({"cost_matrix": torch.zeros(3, 4).half()}, r"of torch\.float16"),
        ({"cost_matrix": torch.full((3, 4), math.nan)}, "must be finite, got values from nan"),
        ({"cost_matrix": torch.full((3, 4), math.inf)}, "must be finite, got values from inf"),
        ({"cost_matrix": 1e30 * torch.ones(3, 4)}, "too small for costs up to 1e.30"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_with_its_value(kwargs: dict, message: str) -> None:
    arguments = {"cost_matrix": torch.rand(3, 4), "lam": 0.5, **kwargs}
    with pytest.raises(ValueError, match=message):
        solve(arguments.pop("cost_matrix"), arguments.pop("lam"), **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lam", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize(
    "cost",
    [
        torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
        (torch.arange(400).reshape(20, 20) % 20 >= 15).float(),
        1.0 - torch.block_diag(torch.ones(5, 15), torch.zeros(15, 5)),
    ],
    ids=["three", "columns", "block"],
)
def test_costs_with_ties_converge(cost: Tensor, lam: float, dtype: torch.dtype) -> None:
    solution = solve(cost.to(dtype), lam, domain="log", tolerance=1e-2)
    rows = solution.plan.sum(-1)
    torch.testing.assert_close(rows, torch.full_like(rows, 1 / len(cost)), rtol=0.05, atol=0)
    exact = ot.emd2([], [], cost.double().numpy())
    assert float(solution.primal_cost) == pytest.approx(exact, abs=0.02)


def test_costs_with_ties_by_chance_converge() -> None:
    """One or two iterations at each λ of the warm start leave half of a row's mass elsewhere."""
    cost = (torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    rows = solve(cost, 1e-4, domain="log", tolerance=1e-2).plan.sum(-1)
    torch.testing.assert_close(rows, torch.full_like(rows, 1 / 8), rtol=0.05, atol=0)


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e4])
@pytest.mark.parametrize("lam", [1e-3, 0.1, 1.0, 1e3, 1e5, 1e7])
def test_what_has_converged_in_float32_is_right_at_any_place_and_lambda(
    lam: float, shift: float
) -> None:
    x, y = (cloud(n, 2, seed=n).float() + shift for n in (30, 40))
    found = solve(SquaredEuclidean()(x, y), lam, 300)
    exact = solve(SquaredEuclidean()(x.double(), y.double()), lam, 300, 1e-5)
    near = abs(float(found.potential_cost / exact.potential_cost) - 1) < 5e-3
    assert near or not bool(found.converged)
    assert bool(found.converged) == (1e-3 < lam < 1e7)


def test_where_nothing_costs_anything_potentials_are_zero() -> None:
    for lam in (1e-3, 1.0, 1e9):
        solution = solve(torch.zeros(7, 5), lam)
        assert bool(solution.converged)
        assert not solution.f.any()
        assert not solution.g.any()


@pytest.mark.parametrize("lam", [0.01, 0.3, 10.0])
def test_a_measure_with_itself_has_one_potential_within_few_iterations(lam: float) -> None:
    x = torch.randn(2, 12, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    log_a = torch.rand(2, 12, dtype=torch.float64).log_softmax(-1)
    cost, options = SquaredEuclidean()(x, x), {"tolerance": 1e-10, "log_a": log_a, "log_b": log_a}
    own = solve(cost, lam, symmetric=True, **options)
    assert bool(own.converged.all())
    assert torch.equal(own.f, own.g)
    assert int(own.iterations.max()) < 60
    assert float(own.marginal_error.max()) < 1e-9
    longer = solve(cost, lam, 2000, **options)
    assert lam < 1 or bool(longer.converged.all())  # alternating updates crawl below
    assert bool(((own.dual_cost - longer.dual_cost).abs() < 1e-7)[longer.converged].all())
    solver = ConvergedSolver(tolerance=1e-10)
    assert torch.equal(solver(cost, lam, (x, x), log_a, log_a).f, own.f)
    other = solver(cost, lam, (x, x), log_a, None)  # one cloud, and two measures on it
    assert float((other.f - other.g).abs().max()) > 1e-3
