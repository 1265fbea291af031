"""Fixed-point sums, and ε of sums of discrete Gaussians, computed from their exact laws."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    Stream,
)
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian

from ..support.laws import assert_law

PLAN = PrivacyPlan(0.2, 2.15, 300, RecordClip(8.0), ClassSchedule(10), 1e-5)
GRID = FixedPoint(2.0**-20, 40, 2.0**10)
SHARED = IntegerGaussian(PLAN, 10, GRID, 6000)
COARSE = FixedPoint(granularity=2.0**-6, bits=20, radius=100.0)
VALUES = st.floats(-150.0, 150.0, width=64)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20))
def test_rounding_moves_two_totals_apart_by_at_most_root_d(pairs):
    one, two = torch.tensor(pairs, dtype=torch.float64).T
    distance = float((one - two).norm()) / COARSE.granularity
    integers = COARSE.rounded(torch.stack([one, two])).double()
    assert float((integers[0] - integers[1]).norm()) <= distance + len(pairs) ** 0.5 + 1e-6


def test_the_bound_of_the_roundings_is_met():
    """Totals on both sides of a half move a whole step in every coordinate."""
    low = torch.full((1, 9), 0.5 * COARSE.granularity - 1e-9, dtype=torch.float64)
    high = torch.full((1, 9), 0.5 * COARSE.granularity + 1e-9, dtype=torch.float64)
    apart = COARSE.rounded(high).double() - COARSE.rounded(low).double()
    assert float(apart.norm()) == 3.0


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_integers_lie_within_the_radius_and_short_totals_are_kept(values):
    total = torch.tensor([values], dtype=torch.float64)
    integers = COARSE.rounded(total)
    most = COARSE.radius / COARSE.granularity + len(values) ** 0.5
    assert float(integers.double().norm()) <= most
    if float(total.norm()) < COARSE.radius * 0.999:
        error = (COARSE.decoded(integers) - total).abs().amax()
        assert float(error) <= COARSE.granularity / 2 * (1 + 1e-9)


def test_a_long_total_is_projected_on_the_ball_and_not_cut():
    total = torch.tensor([[300.0, 400.0]], dtype=torch.float64)
    assert COARSE.decoded(COARSE.rounded(total)).tolist() == [pytest.approx([60.0, 80.0], abs=0.02)]


def test_a_total_may_be_a_single_number():
    totals = torch.tensor([0.3, -1000.0])
    assert COARSE.rounded(totals).tolist() == [19, -6400]


@pytest.mark.parametrize("bits", [16, 17, 32, 59, 60])
def test_sums_are_decoded_up_to_the_last_integer_that_fits(bits):
    grid = FixedPoint(0.5, bits, 1.0)
    half = 2 ** (bits - 1)
    for whole in (0, 1, -1, half - 1, -half):
        assert float(grid.decoded(torch.tensor(whole))) == whole * 0.5
    assert float(grid.decoded(torch.tensor(half))) == -half * 0.5


@given(st.lists(st.integers(-(2**59), 2**59 - 1), min_size=1, max_size=64))
def test_sums_modulo_the_modulus_are_exact_whatever_overflows(parts):
    grid = FixedPoint(1.0, 60, 1.0)
    with np.errstate(over="ignore"):
        added = torch.tensor(parts, dtype=torch.int64).sum()
    exact = (sum(parts) + 2**59) % 2**60 - 2**59
    assert int(grid.wrapped(added)) == exact


@pytest.mark.parametrize(
    "values",
    [
        (0.3, 32, 1.0), (0.0, 32, 1.0), (-1.0, 32, 1.0), (math.nan, 32, 1.0), (math.inf, 32, 1.0),
        (1.0, 15, 1.0), (1.0, 61, 1.0), (1.0, 32.0, 1.0), (1.0, True, 1.0), (1.0, None, 1.0),
        (1.0, 32, 0.0), (1.0, 32, -1.0), (1.0, 32, math.nan), (1.0, 32, math.inf),
        (1.0, 32, 2.0**31), (2.0**-101, 60, 2.0**-60), ("1", 32, 1.0), (True, 32, 1.0),
    ],
)  # fmt: skip
def test_bad_values_are_refused(values):
    with pytest.raises(PrivacyError):
        FixedPoint(*values)


def test_a_total_that_is_not_finite_is_refused():
    for value in (math.nan, math.inf):
        with pytest.raises(PrivacyError, match="not finite"):
            COARSE.rounded(torch.tensor([[0.0, value]]))


def test_it_is_read_as_it_was_written():
    assert FixedPoint.from_dict(COARSE.to_dict()) == COARSE
    assert FixedPoint.from_dict(None) is None


def gaussian(scale: float) -> tuple[np.ndarray, int]:
    """P of N_Z(0, scale²) from −half to half, and half."""
    half = math.ceil(14 * scale)
    support = np.arange(-half, half + 1)
    weights = np.exp(-(support**2) / (2 * scale**2))
    return weights / weights.sum(), half


def sum_of(scale: float, shares: int) -> np.ndarray:
    """P of a sum of so many independent N_Z(0, scale²)."""
    one, _ = gaussian(scale)
    law = one
    for _ in range(shares - 1):
        law = np.convolve(law, one)
    return law


@pytest.mark.parametrize("scale", [0.6, 0.8, 1.0])
@pytest.mark.parametrize("shares", [2, 3, 5])
def test_tau_bounds_what_separates_a_sum_from_one_discrete_gaussian(scale, shares):
    """Convolved, at scales so small that the bound can be seen (η makes them at least 3)."""
    law = sum_of(scale, shares)
    half = len(law) // 2
    near = np.arange(-half, half + 1)
    ideal = np.exp(-(near**2) / (2 * shares * scale**2))
    ideal /= ideal.sum()
    seen = np.abs(near) < 5 * scale * shares**0.5
    ratio = np.abs(np.log(law[seen] / ideal[seen])).max()
    exact = 10 * sum(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)) for k in range(1, shares))
    closed = 10 * (shares - 1) * math.exp(-(math.pi**2) * scale**2)
    assert ratio <= exact + 1e-9 <= closed + 1e-9
    if scale == 0.6:
        assert ratio > exact / 50  # the bound is not vacuous


@pytest.mark.medium
def test_the_divergence_is_its_formula_and_below_every_epsilon_that_matters():
    e = 2 * math.exp(-2 * math.pi**2 * 9)
    rho = 2 * e
    tau = 10 * 9 * math.exp(-(math.pi**2) * SHARED.scale**2)
    assert SHARED.divergence_of_value == pytest.approx(tau + rho, rel=1e-9, abs=0)
    assert SHARED.divergence == pytest.approx(2 * 30 * 6000 * (tau + rho), rel=1e-9, abs=0)
    assert SHARED.epsilon() == PLAN.epsilon() + SHARED.divergence
    # A client answers in every round, a record of its class in a tenth of them.
    whole = PrivacyPlan(0.2, 2.15, 300, BatchClip(8.0), ClassSchedule(10), 1e-5, "client")
    of_client = IntegerGaussian(whole, 10, GRID, 6000)
    each = 6000 * of_client.divergence_of_value
    assert of_client.divergence == pytest.approx(2 * 300 * each, rel=1e-9, abs=0)
    # Coarse integers have the noise η at least, however many share: then τ is what counts.
    coarse = IntegerGaussian(
        replace(PLAN, noise_multiplier=1e-3), 10**4, FixedPoint(8.0, 40, 64.0), 1
    )
    tau = 10 * (10**4 - 1) * math.exp(-(math.pi**2) * coarse.scale**2)
    assert coarse.divergence_of_value == pytest.approx(tau, rel=1e-6, abs=0)
    assert tau > 1e30 * rho
    assert coarse.divergence == pytest.approx(2 * 30 * tau, rel=1e-6, abs=0)


SETTINGS = [
    (sigma, clip, shares, uses)
    for (sigma, uses), clip, shares in product(
        [(0.7, 1), (1.0, 3), (2.0, 10), (4.0, 40)], [RecordClip(1.0), BatchClip(1.0)], [2, 7, 30]
    )
][:20]


@pytest.mark.parametrize(("sigma", "clip", "shares", "uses"), SETTINGS)
def test_epsilon_is_never_under_that_of_the_exact_law_of_the_sum(sigma, clip, shares, uses):
    """One value, a grid so coarse that rounding and integers are seen: PLD of the exact pmf.

    The worst pair of integers is Δ = S/γ + 1 apart. Composed by FFT of privacy losses, rounded
    down: a lower bound on the true δ(ε).
    """
    plan = PrivacyPlan(1.0, sigma, uses, clip, JointSchedule(), 1e-5)
    one = IntegerGaussian(plan, shares, FixedPoint(2.0**-4, 24, 64.0), 1)
    shift = int(one.sensitivity)
    assert one.sensitivity == shift == 16 * clip.sensitivity + 1
    law = sum_of(one.scale, shares)
    assert _delta(law, shift, uses, one.epsilon()) <= plan.delta
    # The stated ε is tight: a tenth less is too little where η adds little.
    if shares == 2 and sigma >= 1:
        assert _delta(law, shift, uses, 0.9 * plan.epsilon()) > plan.delta


def _delta(law: np.ndarray, shift: int, uses: int, epsilon: float) -> float:
    """A lower bound on δ(ε) of so many uses, by losses rounded down to a grid and an FFT."""
    kept, moved = law[shift:], law[:-shift]
    good = (kept > 1e-200) & (moved > 1e-200)
    losses, weights = np.log(moved[good] / kept[good]), moved[good]
    step = 1e-3
    places = np.floor(losses / step).astype(np.int64)
    offset = places.min()
    found = np.bincount(places - offset, weights=weights)
    size = 1 << ((len(found) - 1) * uses).bit_length()
    composed = np.fft.irfft(np.fft.rfft(found, size) ** uses, size).clip(min=0.0)
    total = (np.arange(size) + uses * offset) * step
    above = total > epsilon
    return float((composed[above] * -np.expm1(epsilon - total[above])).sum()) - 1e-12


@pytest.mark.medium
def test_epsilon_equals_dp_accountings_of_the_gaussian():
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    for sigma, uses in ((1.0, 5), (2.0, 20), (5.0, 100)):
        plan = PrivacyPlan(1.0, sigma, uses, RecordClip(1.0), JointSchedule(), 1e-5)
        accountant = PLDAccountant()
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), uses))
        one = IntegerGaussian(plan, 10, GRID, 500)
        assert one.epsilon() == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


@pytest.mark.parametrize("shares", [1, 2, 10, 1000])
@pytest.mark.parametrize("size", [1, 100, 10**6])
@pytest.mark.parametrize("clip", [RecordClip(8.0), BatchClip(0.3), CriticClip(0.5, 4)])
def test_a_sum_and_a_reply_have_the_multipliers_that_are_charged(shares, size, clip):
    for granularity in (2.0**-20, 2.0**-4):
        plan = replace(PLAN, clip=clip, schedule=JointSchedule(), rate=1.0)
        one = IntegerGaussian(plan, shares, FixedPoint(granularity, 60, 64.0), size)
        delta = clip.sensitivity / granularity + math.sqrt(size)
        assert one.sensitivity == pytest.approx(delta, rel=1e-12)
        of_sum = math.sqrt(shares * one.scale**2 - 9.0) / delta
        assert of_sum >= plan.noise_multiplier * (1 - 1e-12)
        alone = math.sqrt(one.scale**2 - 9.0) / delta
        assert alone == pytest.approx(plan.with_noise(1 / shares).noise_multiplier, rel=1e-9)


def test_noise_is_independent_and_of_the_stated_size():
    totals = torch.zeros(4, 60, 100)
    streams = [Stream(b"key", number) for number in range(4)]
    released = SHARED.release_each(SHARED.plan.clip.vouch(totals), streams)
    assert released.dtype == torch.int64
    values = GRID.decoded(released).flatten(1)
    assert_law(values, stats.norm(scale=SHARED.std), reject=1e-12)
    correlations = torch.corrcoef(values) - torch.eye(4)
    assert float(correlations.abs().amax()) < 6 / 6000**0.5
    assert SHARED.std > PLAN.noise_std / 10**0.5
    again = SHARED.release(SHARED.plan.clip.vouch(totals[1]), Stream(b"key", 1))
    assert torch.equal(again, released[1])


def test_a_release_is_the_rounded_total_and_noise():
    totals = torch.randn(2, 6000, generator=torch.Generator().manual_seed(0)).double()
    zeros = SHARED.release_each(
        SHARED.plan.clip.vouch(torch.zeros_like(totals)), [Stream(b"a"), Stream(b"b")]
    )
    released = SHARED.release_each(SHARED.plan.clip.vouch(totals), [Stream(b"a"), Stream(b"b")])
    assert torch.equal(GRID.wrapped(released - zeros), GRID.rounded(totals))


def test_a_drawn_sum_has_the_noise_of_all_shares_once():
    total = SHARED.plan.clip.vouch(torch.zeros(6000))
    assert not bool(SHARED.release_sum(total, None).any())
    noise = GRID.decoded(SHARED.release_sum(total, Stream(b"sum"), 12))
    assert_law(noise, stats.norm(scale=12**0.5 * SHARED.std), reject=1e-12)


def test_a_drawn_sum_of_many_clients_may_be_longer_than_one_client_s_total():
    direction = torch.full((6000,), 6000**-0.5, dtype=torch.float64)
    for reach in (0.5, 1.0, 2.0, 100.0):
        total = reach * SHARED.fixed_point.radius * direction
        found = GRID.decoded(SHARED.release_sum(SHARED.plan.clip.vouch(total), None))
        torch.testing.assert_close(found, total, rtol=0, atol=GRID.granularity)


def test_nothing_is_released_of_a_total_that_is_not_finite_or_of_another_size():
    for value in (math.nan, math.inf):
        with pytest.raises(PrivacyError, match="not finite"):
            SHARED.release(SHARED.plan.clip.vouch(torch.full((6000,), value)), Stream(b"key"))
    with pytest.raises(PrivacyError, match="for 6000 values a use, received 5999"):
        SHARED.release(SHARED.plan.clip.vouch(torch.zeros(5999)), Stream(b"key"))


@pytest.mark.parametrize("bits", [24, 28, 32, 48, 60])
@pytest.mark.parametrize("cohorts", [[2], [100], [999, 1000]])
def test_the_finest_granularity_fits_and_half_of_it_does_not(bits, cohorts):
    radius = PLAN.clip.reach(80)
    try:
        one = IntegerGaussian.finest(PLAN, cohorts, size=9900, bits=bits, radius=radius)
    except PrivacyError:
        assert bits <= 28
        return
    m, grid = cohorts[-1], one.fixed_point
    noise = 12 * m**0.5 * one.scale
    assert m * (radius / grid.granularity + 0.5) + noise < 2 ** (bits - 1)
    assert one.wrap_probability(m) < 1e-12
    finer = grid.granularity / 2
    fits = m * (radius / finer + 0.5) + 2 * noise < 2 ** (bits - 1)
    assert not fits or grid.granularity * 9900**0.5 <= PLAN.sensitivity * 2.0**-29
    assert one.std <= 2 * PLAN.noise_std  # of a share


def test_too_few_bits_are_refused():
    with pytest.raises(PrivacyError, match=r"noise\.bits=16 are too few for sums of 1000 clients"):
        IntegerGaussian.finest(PLAN, [1000], size=9900, bits=16, radius=640.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": 0}, "parts must be an integer"),
        ({"parts": 2.0}, "parts must be an integer"),
        ({"size": 0}, "size must be an integer"),
        ({"fixed_point": FixedPoint(2.0**-20, 24, 1.0)}, "does not fit into noise.bits=24"),
        ({"plan": replace(PLAN, noise_multiplier=1e-6), "parts": 10**35}, "at most|is the most"),
    ],
)
def test_mechanisms_that_prove_nothing_are_refused(changes, message):
    with pytest.raises(PrivacyError, match=message):
        replace(SHARED, **changes)


@pytest.mark.parametrize("granularity", [2.0**-6, 2.0**-9, 2.0**-14])
def test_two_answers_of_secret_critics_lie_within_half_the_sensitivity_of_none(granularity):
    """ε is that of means at ±C: each of both records' answers is rounded, and moves the sum by it.

    The other critic's answer lies just below half a step everywhere, and the record's pushes it up.
    """
    size = 10_000
    bound = granularity * math.sqrt(size) / 2 * 1.0001
    plan = PrivacyPlan(0.5, 0.3, 1, CriticClip(bound, 2), JointSchedule(), 1e-5)
    grid = FixedPoint(granularity, 40, 4 * bound)
    one = IntegerGaussian(plan, 2, grid, size)
    other = torch.full((size,), granularity * 0.49999, dtype=torch.float64)
    record = torch.full((size,), granularity * 2e-5, dtype=torch.float64)
    record[: int(size * 0.2497)] = granularity * 1.0001
    absent = torch.zeros_like(other)

    def rounded(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        gradients = torch.stack([first, second])[None, :, None, :]
        return grid.rounded(plan.clip.total(gradients).flatten()[None])[0].double()

    moved = float((rounded(other, record) - rounded(other, absent)).norm())
    assert moved > bound / granularity + math.sqrt(size) / 3  # more than one rounding in two
    assert moved <= one.sensitivity / 2
    assert replace(one, plan=replace(plan, rate=1.0)).sensitivity < one.sensitivity
