"""Each loss is what its row of the table says, with and without labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.data.maps import L1Ball, L2Ball, PixelRange, PooledPower
from fedsink.data.wavelets import denoised
from fedsink.errors import ConfigError
from fedsink.protocol import LocalPlan
from fedsink.strategies import PrivatizeOnce
from fedsink.strategies.privatize_once.denoising import denoised_values
from fedsink.strategies.privatize_once.loss import LocalLoss
from fedsink.strategies.privatize_once.settings import LOSSES
from fedsink.transport import ConvergedSolver, cost_named, transport_gradient
from fedsink.transport.solvers.exact import assignment_gradient

Local = Callable[..., PrivatizeOnce]
GAUSSIAN = LocalPlan("gaussian", L2Ball((1, 4, 4), 2.0), 20.0, 1e-4)
LAPLACE = LocalPlan("laplace", PixelRange((1, 4, 4), "l1"), 60.0)


def loss(make: Local, plan: LocalPlan, name: str, **more: Any) -> LocalLoss:
    # So many iterations that the comparisons below are with the loss and not with its solver.
    exact = {"max_iterations": 2000, "tolerance": 1e-6}
    return LocalLoss(make(plan=plan, loss=name, **exact, **more).settings)


def batch(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated points and records of two strata."""
    random = torch.Generator().manual_seed(2)
    points = torch.randn(2, n, 16, generator=random) / 4
    return points, torch.randn(2, n, 16, generator=random) / 2


@pytest.mark.parametrize(
    ("plan", "name", "cost"),
    [
        (GAUSSIAN, "unregularised", "squared_l2"),
        (GAUSSIAN, "noisy_w1", "l1"),
        (LAPLACE, "unregularised", "l1"),
        (LAPLACE, "noisy_w1", "l1"),
    ],
)
def test_the_exact_losses_are_the_mean_of_the_strata_without_regularisation(
    make_local: Local, plan: LocalPlan, name: str, cost: str
) -> None:
    points, targets = batch()
    found = loss(make_local, plan, name)(points, targets)
    alone = [
        assignment_gradient(x, y, cost_named(cost)) for x, y in zip(points, targets, strict=True)
    ]
    assert found.value == pytest.approx(float(alone[0].value + alone[1].value) / 2)
    assert torch.allclose(found.gradient, torch.stack([each.gradient for each in alone]) / 2)
    assert found.iterations == 0


def test_the_matched_loss_is_the_mean_of_the_strata(make_local: Local) -> None:
    """Each with the cost and λ of Theorem 1, none with the other's records."""
    plan = replace(GAUSSIAN, epsilon=5.0)
    points, targets = batch()
    found = loss(make_local, plan, "matched", finite_batch_factor=0.8)(points, targets)
    lam = 0.8 * 2 * plan.image_mechanism.scale**2
    for stratum in range(2):
        alone = transport_gradient(
            points[stratum], targets[stratum], cost_named("squared_l2"), lam,
            solver=ConvergedSolver(2000, 1e-6),
        )  # fmt: skip
        assert torch.allclose(found.gradient[stratum], alone.gradient / 2, atol=1e-5)
    assert found.iterations > 0


def test_the_debiased_gradient_is_the_sinkhorn_divergences(make_local: Local) -> None:
    """By finite differences of W(X, Y) − ½W(X, X), in which X moves on both sides."""
    points, targets = batch()
    step = torch.randn(points.shape, generator=torch.Generator().manual_seed(3)) * 1e-2
    of = loss(make_local, replace(GAUSSIAN, epsilon=5.0), "debiased")
    ahead, behind = (of(points + sign * step, targets).value for sign in (1, -1))
    expected = float((of(points, targets).gradient * step).sum())
    assert (ahead - behind) / 2 == pytest.approx(expected, rel=0.02)


def test_the_debiased_loss_is_least_where_the_points_are_the_targets(make_local: Local) -> None:
    """Its minimiser is the distribution of Y; the matched loss still pulls there."""
    _, targets = batch()
    plan = replace(GAUSSIAN, epsilon=3.0)
    debiased, matched = (
        loss(make_local, plan, name)(targets, targets) for name in ("debiased", "matched")
    )
    assert float(debiased.gradient.abs().max()) < 1e-4
    assert float(matched.gradient.abs().max()) > 1e-2


def test_denoised_records_are_what_the_exact_loss_sees(make_local: Local) -> None:
    found = loss(make_local, GAUSSIAN, "denoised")
    points, values = (t.flatten(0, 1) for t in batch())
    std = GAUSSIAN.image_mechanism.scale
    expected = denoised(values.reshape(-1, 1, 4, 4), std).flatten(1)
    assert torch.allclose(found.targets(values), expected)
    assert not torch.allclose(expected, values, atol=0.1)
    assert torch.equal(loss(make_local, GAUSSIAN, "unregularised").targets(values), values)
    exact = loss(make_local, GAUSSIAN, "unregularised")(points[None], expected[None])
    assert found(points[None], found.targets(values)[None]).value == exact.value


def test_records_in_the_cosine_basis_are_denoised_as_pictures() -> None:
    """A constant picture has no details: it stays, while noise in every coordinate shrinks."""
    plan = LocalPlan("laplace", L1Ball((1, 8, 8), 20.0), 4.0)
    clean = plan.map(torch.full((50, 1, 8, 8), 0.9))
    noise = plan.image_mechanism.scale * torch.distributions.Laplace(0.0, 1.0).sample(clean.shape)
    assert torch.allclose(denoised_values(clean, plan), clean, atol=1e-4)
    before = float(noise.square().mean())
    after = float((denoised_values(clean + noise, plan) - clean).square().mean())
    assert after < 0.5 * before


def test_the_threshold_of_laplace_noise_is_that_of_its_standard_deviation() -> None:
    values = 30.0 * torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    std = LAPLACE.image_mechanism.scale * 2**0.5
    expected = denoised(values.reshape(-1, 1, 4, 4), std).flatten(1)
    assert torch.allclose(denoised_values(values, LAPLACE), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_only_the_matched_loss_is_reported_as_theorem_1(make_local: Local, name: str) -> None:
    settings = make_local(plan=GAUSSIAN, loss=name).settings
    assert settings.matched == (name == "matched")
    lam = GAUSSIAN.matched_cost.lam if name in ("matched", "debiased") else 0.0
    assert settings.effective_lam == pytest.approx(lam)
    assert settings.effective_cost == ("l1" if name == "noisy_w1" else "squared_l2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "sharp"}, r"strategy\.loss is matched, debiased.* or denoised, not 'sharp'"),
        (
            {"loss": "debiased", "lam": 1.0, "unmatched": True},
            r"strategy\.loss=debiased has a cost and λ of its own: leave",
        ),
        (
            {
                "loss": "denoised",
                "plan": replace(GAUSSIAN, map=PooledPower((1, 4, 4), 2, norm="l2")),
            },
            r"whole pictures, and the map pooled_power .*choose map=pixel_range",
        ),
    ],
)
def test_impossible_losses_are_refused(
    make_local: Local, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_local(**changes)
