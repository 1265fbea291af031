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


def test_bad_values_are_refused():
    with pytest.raises(
        PrivacyError,
        match="clip must be one of BatchClip, RecordClip, CriticClip, RowClip, received 2",
    ):
        ClippedGaussian(2.0, 1.0)
    with pytest.raises(PrivacyError, match="sigma must be a finite number > 0, received 0"):
        ClippedGaussian(BatchClip(1.0), 0)
