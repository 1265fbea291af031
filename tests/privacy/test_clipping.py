from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import PrivacyError
from fedsink.privacy import BatchClip, RecordClip, Stream

BOUNDS = st.floats(1e-3, 1e3)
SCALES = st.floats(1e-6, 1e6)


def gradient(seed: int, scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (scale * Stream(b"key", seed).normal(7, 3, 5)).to(dtype)


@given(BOUNDS, SCALES, st.integers(0, 50), st.sampled_from([torch.float32, torch.float64]))
def test_the_clipped_gradient_has_norm_at_most_the_bound(bound, scale, seed, dtype):
    clipped = BatchClip(bound).apply(gradient(seed, scale, dtype))
    assert float(clipped.double().norm()) <= bound
    assert clipped.dtype == dtype
    assert clipped.shape == (7, 3, 5)


@given(BOUNDS, SCALES, st.integers(0, 50))
def test_any_two_clipped_gradients_differ_by_at_most_the_sensitivity(bound, scale, seed):
    clip = BatchClip(bound)
    one, other = clip.apply(gradient(seed, scale)), clip.apply(gradient(seed + 1, 1e6))
    assert float((one.double() - other.double()).norm()) <= clip.sensitivity


def test_the_batch_sensitivity_is_twice_the_bound_and_is_reached():
    clip = BatchClip(0.5)
    far = gradient(0, 1e3)
    distance = float((clip.apply(far).double() - clip.apply(-far).double()).norm())
    assert clip.sensitivity == 1.0
    assert distance == pytest.approx(clip.sensitivity, rel=1e-5)


def test_a_gradient_within_the_bound_is_unchanged_and_directions_are_kept():
    small = gradient(0, 1e-3)
    assert torch.equal(BatchClip(10.0).apply(small), small)
    large = gradient(0, 1e3)
    clipped = BatchClip(10.0).apply(large)
    torch.testing.assert_close(clipped / clipped.norm(), large / large.norm())


def test_an_all_zero_gradient_stays_zero():
    assert torch.equal(BatchClip(1.0).apply(torch.zeros(3, 2)), torch.zeros(3, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_with_a_non_finite_entry_becomes_zero(bad):
    values = gradient(0, 1.0)
    values[2, 1, 0] = bad
    assert torch.equal(BatchClip(1.0).apply(values), torch.zeros(7, 3, 5))


def test_an_empty_gradient_stays_empty():
    assert BatchClip(1.0).apply(torch.zeros(0, 4)).shape == (0, 4)


def test_float32_norms_beyond_its_range_are_still_clipped():
    clipped = BatchClip(1.0).apply(torch.full((100, 100), 1e38))
    assert float(clipped.double().norm()) == pytest.approx(1.0, rel=1e-5)


def test_narrow_types_are_refused():
    with pytest.raises(PrivacyError, match=r"float32 or float64, received torch\.float16"):
        BatchClip(1.0).apply(torch.zeros(2, dtype=torch.float16))


@given(BOUNDS, SCALES)
def test_every_scaled_contribution_has_norm_at_most_the_bound(bound, scale):
    contributions = (scale * Stream(b"key").normal(20, 6)).to(torch.float32)
    clip = RecordClip(bound)
    factors = clip.scales(contributions.double().norm(dim=1))
    scaled = (contributions * factors[:, None].float()).double()
    assert float(scaled.norm(dim=1).max()) <= clip.sensitivity


def test_the_record_sensitivity_is_the_bound_and_is_reached_by_the_sum():
    clip = RecordClip(2.0)
    contributions = 100 * Stream(b"key").normal(5, 6)
    scaled = contributions * clip.scales(contributions.norm(dim=1))[:, None]
    without = scaled[1:].sum(0)
    distance = float((scaled.sum(0) - without).norm())
    assert clip.sensitivity == 2.0
    assert distance == pytest.approx(clip.sensitivity, rel=1e-5)


def test_a_record_of_zero_norm_keeps_factor_one_and_of_non_finite_norm_gets_zero():
    factors = RecordClip(1.0).scales(torch.tensor([0.0, 0.5, math.inf, math.nan]))
    assert factors.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert factors.dtype == torch.float64


def test_negative_norms_are_refused():
    with pytest.raises(PrivacyError, match="norms must not be negative"):
        RecordClip(1.0).scales(torch.tensor([-1.0]))


@pytest.mark.parametrize("clip", [BatchClip, RecordClip])
@pytest.mark.parametrize("bound", [0, -1.0, math.inf, math.nan, "1", None, True])
def test_a_bad_bound_is_refused(clip, bound):
    with pytest.raises(PrivacyError, match=r"bound must be a finite number > 0, received"):
        clip(bound)


def test_names():
    assert (BatchClip(1).name, RecordClip(1).name) == ("batch", "record")
