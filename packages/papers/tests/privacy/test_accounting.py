"""The papers' own conversion gives the papers' ε and numbers of rounds."""

from __future__ import annotations

import pytest
from fedsink_papers.accounting import rdp_classic_epsilon

from fedsink.privacy import ACCOUNTANTS, BatchClip, JointSchedule, PrivacyPlan

MNIST = (1 / 1200, 1.1)


FASHION = (1 / 1200, 0.9)


CELEBA = (200 / 162770, 0.8)


@pytest.mark.parametrize(
    ("uses", "classic"), [(100_000, 1.502), (1_000_000, 4.997), (3_400_000, 9.925)]
)
def test_published_mnist_row_by_the_papers_own_conversion(uses, classic):
    assert rdp_classic_epsilon(*MNIST, uses, 1e-5) == pytest.approx(classic, abs=6e-4)


@pytest.mark.parametrize(
    ("setting", "delta", "uses"),
    [(MNIST, 1e-5, 3_446_203), (FASHION, 1e-5, 1_811_611), (CELEBA, 1e-6, 463_773)],
    ids=["mnist", "fashion", "celeba"],
)
def test_published_largest_number_of_rounds_by_the_papers_own_conversion(setting, delta, uses):
    assert rdp_classic_epsilon(*setting, uses, delta) == pytest.approx(10, abs=2e-5)


@pytest.mark.parametrize(("delta", "classic"), [(1e-6, 16.4), (1e-5, 15.2)])
def test_published_celeba_run_by_the_papers_own_conversion(delta, classic):
    assert rdp_classic_epsilon(*CELEBA, 1_100_000, delta) == pytest.approx(classic, abs=0.06)


def test_the_papers_conversion_tells_the_noise_of_algorithm_1_from_that_of_its_theorem() -> None:
    """Theorem 4.1 states N(0, Δ²σ²); Algorithm 1 adds 2Δσ, and only that gives ε = 10."""
    plan = PrivacyPlan(1 / 1200, 1.1, 3_400_000, BatchClip(0.5), JointSchedule(), 1e-5)
    assert plan.epsilon("rdp-classic") == pytest.approx(9.925, abs=1e-3)
    half = plan.noise_multiplier / 2  # std Δσ against a sensitivity of 2Δ
    assert rdp_classic_epsilon(plan.rate, half, plan.uses, 1e-5) == pytest.approx(69, abs=1)


def test_it_is_no_tighter_than_the_others_and_names_its_library() -> None:
    plan = PrivacyPlan(0.2, 2.0, 300, BatchClip(0.5), JointSchedule(), 1e-5)
    assert plan.epsilon("pld") < plan.epsilon("rdp") < plan.epsilon("rdp-classic")
    assert ACCOUNTANTS["rdp-classic"].library == "dp-accounting"
