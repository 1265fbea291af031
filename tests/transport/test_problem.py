from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import Solution, solve


def problem(seed: int, n: int = 7, m: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(n, m, generator=generator, dtype=torch.float64)
    log_a = torch.randn(n, generator=generator, dtype=torch.float64).log_softmax(0)
    log_b = torch.randn(m, generator=generator, dtype=torch.float64).log_softmax(0)
    return cost, log_a, log_b


def test_the_costs_agree_at_the_optimum() -> None:
    cost, log_a, log_b = problem(0)
    solution = solve(cost, 0.2, log_a=log_a, log_b=log_b, tolerance=1e-12, max_iterations=9999)
    plan, product = solution.plan, log_a.exp()[:, None] * log_b.exp()
    entropy = (plan * (plan / product).log()).sum() - plan.sum() + product.sum()
    assert float(solution.primal_cost) == pytest.approx(float((cost * plan).sum()))
    assert float(solution.regularised_cost) == pytest.approx(
        float((cost * plan).sum() + 0.2 * entropy)
    )
    assert float(solution.dual_cost) == pytest.approx(float(solution.regularised_cost))
    assert float(solution.potential_cost) == pytest.approx(float(solution.dual_cost))
    assert float(solution.primal_cost) < float(solution.regularised_cost)
    assert float(solution.marginal_error) < 1e-11


@pytest.mark.medium
@given(seed=st.integers(0, 10_000), lam=st.floats(0.05, 5.0))
def test_dual_cost_is_a_lower_bound_at_any_potentials(seed: int, lam: float) -> None:
    cost, log_a, log_b = problem(seed)
    optimum = solve(cost, lam, log_a=log_a, log_b=log_b, tolerance=1e-10, max_iterations=9999)
    generator = torch.Generator().manual_seed(seed + 1)
    arbitrary = Solution(
        f=optimum.f + 0.3 * torch.randn(7, generator=generator, dtype=torch.float64),
        g=optimum.g + 0.3 * torch.randn(5, generator=generator, dtype=torch.float64),
        cost_matrix=cost,
        lam=lam,
        log_a=log_a,
        log_b=log_b,
        iterations=torch.tensor(0),
        converged=torch.tensor(False),
    )
    assert float(arbitrary.dual_cost) <= float(optimum.dual_cost) + 1e-9
    # Whatever the potentials, its marginal error is that of the plan written out.
    plan = arbitrary.plan
    error = (plan.sum(1) - log_a.exp()).abs().sum() + (plan.sum(0) - log_b.exp()).abs().sum()
    assert float(arbitrary.marginal_error) == pytest.approx(float(error))


def test_the_costs_differ_before_convergence_as_documented() -> None:
    cost, log_a, log_b = problem(3)
    solution = solve(cost, 0.02, log_a=log_a, log_b=log_b, tolerance=0.0, max_iterations=1)
    plan = solution.plan
    gap = (solution.f * (plan.sum(1) - log_a.exp())).sum()
    gap = gap + (solution.g * (plan.sum(0) - log_b.exp())).sum()
    assert float(solution.regularised_cost - solution.dual_cost) == pytest.approx(float(gap))
    assert abs(float(gap)) > 1e-4
    # One marginal holds after each iteration, so the plan's mass is one already.
    assert float(solution.potential_cost) == pytest.approx(float(solution.dual_cost))


def test_the_regularised_cost_counts_a_mass_other_than_one() -> None:
    """Potentials that solve no problem give such a mass."""
    cost, log_a, log_b = problem(4)
    optimum = solve(cost, 0.5, log_a=log_a, log_b=log_b)
    off = replace(optimum, f=optimum.f + 0.1)
    plan, product = off.plan, log_a.exp()[:, None] * log_b.exp()
    assert float(plan.sum()) > 1.1
    entropy = (plan * (plan / product).log()).sum() - plan.sum() + product.sum()
    expected = (cost * plan).sum() + 0.5 * entropy
    assert float(off.regularised_cost) == pytest.approx(float(expected))
