from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, RecordClip
from fedsink.privacy.accounting.accountants import gaussian_epsilon, pld_epsilon
from fedsink.privacy.accounting.composition import Spent, Uses, epsilon_of, replacement
from fedsink.privacy.accounting.replacement import _pmf

RECORD, BATCH = RecordClip(1.0), BatchClip(1.0)
JOINT, SPLIT = JointSchedule(), ClassSchedule(10)
F2 = (0.2, 2.291, 400, 1e-5)
BATCH_RECIPE = (0.025, 0.848, 1600, 1e-5)


def replacement_epsilon(rate, sigma, uses, delta, clip, schedule):
    return epsilon_of([Spent(replacement(rate, sigma, uses, clip, schedule))], delta)


def of_labels(rate, sigma, uses, delta):
    return epsilon_of([Spent((Uses("two-labels", rate, sigma, uses),))], delta)


@pytest.mark.medium
def test_the_reference_numbers_of_the_record_recipe():
    assert pld_epsilon(*F2) == pytest.approx(9.17, abs=0.005)
    assert replacement_epsilon(*F2, RECORD, SPLIT) == pytest.approx(20.0, abs=0.01)
    assert of_labels(*F2) == pytest.approx(13.4, abs=0.01)


@pytest.mark.medium
def test_the_reference_numbers_of_the_batch_recipe():
    assert pld_epsilon(*BATCH_RECIPE) == pytest.approx(9.09, abs=0.005)
    assert replacement_epsilon(*BATCH_RECIPE, BATCH, SPLIT) == pytest.approx(12.17, abs=0.005)
    assert replacement_epsilon(*BATCH_RECIPE, BATCH, JOINT) == pytest.approx(11.28, abs=0.005)


@pytest.mark.slow
def test_gs_wgans_one_of_a_thousand_shards():
    """347: the pair of sampling without replacement, at the multiplier of a whole batch."""
    found = replacement_epsilon(1 / 1000, 1.07 / math.sqrt(32), 20_000, 1e-5, BATCH, JOINT)
    assert found == pytest.approx(347, abs=0.5)


@pytest.mark.medium
@pytest.mark.parametrize("clip", [RECORD, BATCH])
@pytest.mark.parametrize("schedule", [JOINT, SPLIT])
def test_replacing_a_record_costs_more_than_adding_one(clip, schedule):
    assert replacement_epsilon(0.1, 1.5, 50, 1e-5, clip, schedule) > pld_epsilon(0.1, 1.5, 50, 1e-5)


@pytest.mark.medium
def test_a_change_of_label_is_part_of_the_content_in_a_joint_schedule():
    split = replacement_epsilon(*BATCH_RECIPE, BATCH, SPLIT)
    assert split == of_labels(*BATCH_RECIPE)
    assert split > replacement_epsilon(*BATCH_RECIPE, BATCH, JOINT)
    one_class = replacement_epsilon(*BATCH_RECIPE, BATCH, ClassSchedule(1))
    assert one_class == replacement_epsilon(*BATCH_RECIPE, BATCH, JOINT)


@pytest.mark.medium
def test_opposite_answers_are_told_apart_best_of_all_within_the_bound():
    """The hockey stick of two answers of one coin, in the plane, by quadrature."""
    axis = np.linspace(-9, 9, 601)
    x, y = np.meshgrid(axis, axis)
    weight = np.exp(-(x**2 + y**2) / 2) * (axis[1] - axis[0]) ** 2 / (2 * math.pi)

    def shifted(length: float, angle: float) -> np.ndarray:
        along = x * math.cos(angle) + y * math.sin(angle)
        return np.exp(length * along - length**2 / 2)

    def hockey_stick(rate: float, eps: float, *answers: tuple[float, float]) -> float:
        p, q = (1 - rate + rate * shifted(*answer) for answer in answers)
        return float((weight * np.maximum(0, p - math.exp(eps) * q)).sum())

    random = np.random.default_rng(0)
    for bound, rate, eps in ((0.3, 0.1, 0.01), (1.0, 0.5, 0.4), (2.5, 0.05, 0.5), (1.0, 0.3, -0.3)):
        most = hockey_stick(rate, eps, (bound, 0.0), (bound, math.pi))
        for _ in range(20):
            lengths = bound * random.uniform(0, 1, 2) ** 0.3
            angles = random.uniform(0, 2 * math.pi, 2)
            pairs = list(zip(lengths, angles, strict=True))
            assert hockey_stick(rate, eps, *pairs) <= most + 1e-9


# Every loss distribution bounds the hockey stick of the mechanism it stands for, integrated here.

_X = np.linspace(-40, 40, 400_001)


def _hockey_stick(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return float(np.trapezoid(np.maximum(0, p - math.exp(eps) * q), _X))


def _mixture(rate: float, mean: float, sigma: float) -> np.ndarray:
    return (1 - rate) * stats.norm.pdf(_X, 0, sigma) + rate * stats.norm.pdf(_X, mean, sigma)


@pytest.mark.medium
@pytest.mark.quick("*-0.0", "*-1.0")
@pytest.mark.parametrize("eps", [-1.0, -0.1, 0.0, 0.1, 1.0, 2.0])
@pytest.mark.parametrize(("rate", "sigma"), [(0.2, 1.0), (0.5, 0.7)])
@pytest.mark.parametrize(
    ("kinds", "answers"),
    [
        (("REPLACE",), [(1, -1), (-1, 1), (1, 0), (0, -1), (1, 0.5)]),
        # Gradients in units of 2Δ: that far from 0 at most, and from one another.
        (("REMOVE", "ADD"), [(1, 0), (0, 1), (1, 0.5), (-0.5, 0.5), (0.5, -0.5), (1, 1)]),
    ],
    ids=["record", "batch"],
)
def test_one_use_is_bounded_for_any_two_answers(kinds, answers, rate, sigma, eps):
    bound = _pmf(kinds, rate, sigma, 1e-3).get_delta_for_epsilon(eps)
    for pair in answers:
        true = _hockey_stick(*(_mixture(rate, answer, sigma) for answer in pair), eps)
        assert true <= bound + 1e-9, pair
        if pair == (1, -1):
            assert bound == pytest.approx(true, abs=1e-4)  # and no larger than it needs to be


def test_without_sampling_the_figures_are_exact():
    sigma, uses, delta = 3.0, 25, 1e-5
    opposite = replacement_epsilon(1.0, sigma, uses, delta, RECORD, JOINT)
    assert opposite == gaussian_epsilon(sigma / (2 * 5), delta)
    assert replacement_epsilon(1.0, sigma, uses, delta, RECORD, SPLIT) == opposite
    assert replacement_epsilon(1.0, sigma, uses, delta, BATCH, JOINT) == gaussian_epsilon(
        sigma / 5, delta
    )
    assert replacement_epsilon(1.0, sigma, uses, delta, BATCH, SPLIT) == gaussian_epsilon(
        sigma / math.sqrt(50), delta
    )


@pytest.mark.medium
def test_sampling_nearly_everything_comes_close_to_the_exact_figure():
    sampled = replacement_epsilon(0.9999999, 3.0, 25, 1e-5, RECORD, JOINT)
    exact = replacement_epsilon(1.0, 3.0, 25, 1e-5, RECORD, JOINT)
    assert sampled == pytest.approx(exact, rel=1e-3)


@pytest.mark.slow
def test_millions_of_uses_are_cross_checked():
    found = replacement_epsilon(1 / 1200, 1.1, 3_400_000, 1e-5, BATCH, JOINT)
    assert found == pytest.approx(11.49, abs=0.02)


def test_absurdly_little_noise_costs_what_it_costs_without_sampling():
    whole = replacement_epsilon(1.0, 1e-3, 1000, 1e-5, RECORD, JOINT)
    assert whole > 1e9
    assert replacement_epsilon(0.5, 1e-3, 1000, 1e-5, RECORD, JOINT) == whole
