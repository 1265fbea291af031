from __future__ import annotations

import pytest
import torch

from fedsink.strategies.base.central_strategy import signal_to_noise


def test_the_ratio_is_not_cut_off_where_the_signal_is_below_measurement():
    assert signal_to_noise(5.0, 1.0) == {"signal_to_noise": 2.0}
    assert signal_to_noise(0.75, 1.0) == {"signal_to_noise": -0.5}
    assert signal_to_noise(1.0, 1.0) == {"signal_to_noise": 0.0}
    assert signal_to_noise(1.0, 0.0) == {}


@pytest.mark.parametrize("signal", [0.0, 0.1])
def test_its_signed_squares_are_right_on_average(signal):
    """A signal of a tenth of the noise in 100 coordinates: one release in four is below it."""
    random = torch.Generator().manual_seed(0)
    releases = signal + torch.randn(20_000, 100, generator=random, dtype=torch.float64)
    ratios = [
        signal_to_noise(energy, 100.0)["signal_to_noise"]
        for energy in releases.square().sum(1).tolist()
    ]
    mean = sum(ratio * abs(ratio) for ratio in ratios) / len(ratios)
    assert mean == pytest.approx(signal**2, abs=5 * (2 / 100 / 20_000) ** 0.5)
    assert min(ratios) < 0.0 < max(ratios)
