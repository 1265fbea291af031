from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import BatchClip, ClippedGaussian, RecordClip, Stream

BATCH = ClippedGaussian(BatchClip(1.5), 0.9)


@given(st.floats(0.01, 100), st.floats(0.1, 50))
def test_the_noise_std_is_the_multiplier_times_the_clips_sensitivity(bound, sigma):
    assert ClippedGaussian(BatchClip(bound), sigma).noise_std == sigma * (2 * bound)
    assert ClippedGaussian(RecordClip(bound), sigma).noise_std == sigma * bound


@pytest.mark.parametrize("clip", [BatchClip(1.5), RecordClip(1.5)])
def test_the_events_multiplier_is_the_noise_std_over_the_sensitivity(clip):
    mechanism = ClippedGaussian(clip, 0.9)
    assert mechanism.sensitivity == clip.sensitivity
    assert mechanism.event == dp_accounting.GaussianDpEvent(0.9)
    assert mechanism.event.noise_multiplier == pytest.approx(
        mechanism.noise_std / mechanism.sensitivity
    )


def test_every_coordinate_gets_independent_noise_of_that_standard_deviation():
    noise = BATCH.release(torch.zeros(200, 100), Stream(b"key")).numpy()
    law = stats.norm(scale=2 * 1.5 * 0.9)
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 0.001
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * noise.ravel(), law.cdf).pvalue < 1e-9
    columns = np.corrcoef(noise.T)[np.triu_indices(100, 1)]
    assert abs(columns).max() < 5.5 / math.sqrt(200)
    assert stats.kstest(columns * math.sqrt(200), stats.norm.cdf).pvalue > 0.001


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_released_where_the_total_is_not_finite(bad):
    with pytest.raises(PrivacyError, match="not finite: clip it before releasing"):
        BATCH.release(torch.tensor([0.0, bad]), Stream(b"key"))


def test_noise_drawn_elsewhere_gives_the_same_release():
    totals = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    streams = [Stream(b"key", number) for number in range(3)]
    normals = torch.stack([Stream(b"key", number).normal(5, 4) for number in range(3)])
    whole = torch.ones(3, dtype=torch.float64)
    released = BATCH.release_drawn(totals, normals, whole)
    assert released.dtype == torch.float32
    assert torch.equal(released, BATCH.release_each(totals, streams))


def test_a_share_of_the_noise_is_that_of_its_variance():
    zeros, normals = torch.zeros(2, 300, 100), Stream(b"key").normal(2, 300, 100)
    shares = torch.tensor([1.0, 0.25], dtype=torch.float64)
    whole, quarter = BATCH.release_drawn(zeros, normals, shares)
    for noise, std in ((whole, BATCH.noise_std), (quarter, BATCH.noise_std / 2)):
        assert stats.kstest(noise.flatten().numpy(), stats.norm(scale=std).cdf).pvalue > 0.001


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_with_noise_drawn_elsewhere_nothing_is_told_of_a_total_that_is_not_finite(bad):
    totals, normals = torch.ones(2, 4), torch.zeros(2, 4, dtype=torch.float64)
    totals[1, 2] = bad
    released = BATCH.release_drawn(totals, normals, torch.ones(2, dtype=torch.float64))
    assert torch.equal(released[0], totals[0])
    assert bool(released[1].isnan().all())


def test_bad_values_are_refused():
    with pytest.raises(
        PrivacyError,
        match="clip must be one of BatchClip, RecordClip, CriticClip, RowClip, received 2",
    ):
        ClippedGaussian(2.0, 1.0)
    with pytest.raises(PrivacyError, match="sigma must be a finite number > 0, received 0"):
        ClippedGaussian(BatchClip(1.0), 0)
