"""The six corrections to the papers; each test fails under the paper's slip."""

from __future__ import annotations

import math

import pytest
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    Gaussian,
    JointSchedule,
    Laplace,
    PrivacyPlan,
    Stream,
)
from fedsink.privacy.accounting.accountants import pld_epsilon_on_grid, rdp_epsilon
from fedsink.privacy.accounting.amplification import largest_local_epsilon, shuffled_epsilon


@pytest.mark.slow
def test_correction_1_the_noise_is_two_delta_sigma_and_the_theorems_reading_costs_sixty():
    """Theorem 4.1 states N(0, Δ²σ²); Algorithm 1 adds 2Δσ, and only that gives ε = 10."""
    plan = PrivacyPlan(1 / 1200, 1.1, 3_400_000, BatchClip(0.5), JointSchedule(), 1e-5)
    assert plan.noise_std == pytest.approx(1.1)  # the paper's 2 · 0.5 · 1.1 per pixel
    noise = plan.release(plan.clip.vouch(torch.zeros(50_000)), Stream(b"key"))
    assert float(noise.std()) == pytest.approx(1.1, rel=0.02)
    half = plan.noise_multiplier / 2  # std Δσ against a sensitivity of 2Δ
    assert pld_epsilon_on_grid(plan.rate, half, plan.uses, 1e-5, 1e-4) == pytest.approx(61, abs=1)
    assert rdp_epsilon(plan.rate, half, plan.uses, 1e-5) == pytest.approx(68, abs=1)


def test_correction_2_the_scale_is_the_diameter_over_epsilon():
    """Corollary 1 prints λ = ε/Δ₁ with Δ₁ = sup‖x‖₁: a ball of radius r has diameter 2r."""
    radius, eps = 140.0, 35.0
    mechanism = Laplace(2 * radius, eps)
    assert mechanism.scale == pytest.approx(2 * radius / eps, rel=1e-5)
    assert mechanism.matched_cost.lam == mechanism.scale
    for slip in (eps / radius, eps / (2 * radius), radius / eps):
        assert not math.isclose(mechanism.scale, slip, rel_tol=0.1)
    first, second = torch.zeros(1000), torch.zeros(1000)
    first[0], second[0] = radius, -radius
    loss = float((first - second).abs().sum()) / mechanism.scale
    assert loss == pytest.approx(eps, rel=1e-5)  # with sup‖x‖₁ it would be 2ε
    assert loss <= eps


@pytest.mark.parametrize(
    ("eps", "analytic", "equation5"), [(25, 9.174, 9.647), (30, 8.065, 8.436), (35, 7.247, 7.549)]
)
def test_correction_3_the_published_gaussian_scales_are_analytic(eps, analytic, equation5):
    assert Gaussian(40, eps, 1e-4).scale == pytest.approx(analytic, abs=1e-3)
    printed = Gaussian(40, eps, 1e-4, calibration="equation5").scale
    assert printed == pytest.approx(equation5, abs=1e-3)


def test_correction_3_the_classical_formula_is_nowhere():
    assert math.sqrt(2 * math.log(1.25 / 1e-5)) / 10 < Gaussian(1.0, 10.0, 1e-5).scale
    with pytest.raises(PrivacyError, match="calibration 'classical' is unknown: choose one of"):
        Gaussian(1.0, 10.0, 1e-5, calibration="classical")


@pytest.mark.parametrize(
    ("diameter", "scale", "eps"),
    [(2 * 784, 3, 522.7), (2 * 784, 7, 224), (2 * 784, 8, 196), (280, 8, 35)],
)
def test_correction_4_whole_images_without_projection_cost_hundreds(diameter, scale, eps):
    """The paper says ε = 97 for MNIST at σ = 3."""
    assert Laplace.from_scale(diameter, scale).epsilon == pytest.approx(eps, abs=0.05)


def test_correction_5_the_half_circles_diameters():
    """The paper's √2 and 2 are a quarter circle's."""
    angles = torch.linspace(0, math.pi, 721, dtype=torch.float64)
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert float(torch.cdist(points, points).max()) == pytest.approx(2.0)
    l1 = float(torch.cdist(points, points, p=1).max())
    assert l1 == pytest.approx(2.414, abs=1e-3)
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / math.sqrt(2)
    assert float(torch.cdist(points @ turn, points @ turn, p=1).max()) == pytest.approx(
        2.83, abs=2e-3
    )
    assert Laplace.from_scale(l1, 0.4).epsilon == pytest.approx(6.04, abs=0.01)
    assert Gaussian.from_scale(2.0, 1.276, 1e-4).epsilon == pytest.approx(6.55, abs=0.01)


def test_correction_6_shuffling_is_refused_beyond_its_condition():
    assert shuffled_epsilon(5.0, 400_000, 1e-6) == pytest.approx(0.352, abs=5e-4)
    assert largest_local_epsilon(60_000, 1e-6) == pytest.approx(6.25, abs=5e-3)
    for eps in (25.0, 35.0):
        with pytest.raises(PrivacyError, match="no amplification can be claimed"):
            shuffled_epsilon(eps, 60_000, 1e-6)
