"""Low-pass noise: its law, its limits, and that it looks at nothing but the picture."""

from __future__ import annotations

import math

import pytest
import torch

from fedsink.data import dct
from fedsink.errors import ConfigError
from fedsink.models.low_pass import LowPassNoise
from fedsink.privacy import Stream


def stream() -> Stream:
    return Stream(b"key", "noise")


def grey(n: int, shape: tuple[int, int, int] = (1, 8, 8)) -> torch.Tensor:
    return torch.full((n, *shape), 0.5)


def test_the_spectrum_is_the_stated_one():
    noise = LowPassNoise(std=0.02, cutoff=0.375)
    n = noise(grey(20_000), stream()) - 0.5
    band = dct.disc(8, 8, 12.0)
    measured = (n.flatten(1).double() @ dct.basis(8, 8, band).T).square().mean(0).sqrt()
    radii = torch.tensor([math.hypot(i, j) for i, j in band])
    expected = 1 / (1 + (radii / 3.0) ** 2)
    ratio = measured / expected
    assert ratio.std() / ratio.mean() < 0.01
    assert n.square().mean().sqrt() == pytest.approx(0.02, rel=0.01)


def test_channels_and_pictures_are_independent():
    n = LowPassNoise(std=0.02)(grey(4000, (3, 8, 8)), stream()) - 0.5
    rows = n.flatten(2).transpose(0, 1).flatten(1)
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.02
    assert torch.corrcoef(torch.stack([n[:-1].flatten(), n[1:].flatten()]))[0, 1].abs() < 0.02


def test_pictures_stay_in_range_and_only_the_range_bends_the_noise():
    images = torch.zeros(500, 1, 8, 8)
    noisy = LowPassNoise(std=0.3)(images, stream())
    assert 0.0 == noisy.min() < noisy.max() <= 1.0
    assert (noisy == 0).double().mean() == pytest.approx(0.5, abs=0.03)


def test_a_picture_s_noise_depends_on_its_place_and_the_stream_alone():
    noise = LowPassNoise(std=0.1)
    few, many = noise(grey(3), stream()), noise(grey(8), stream())
    assert torch.equal(few, many[:3])
    assert not torch.equal(few[0], few[1])
    assert not torch.equal(few, noise(grey(3), Stream(b"other", "noise")))


def test_no_noise_changes_nothing():
    images = torch.rand(3, 1, 8, 8)
    assert LowPassNoise()(images, stream()) is images
    assert LowPassNoise(std=0.1)(grey(0), stream()).shape == (0, 1, 8, 8)


def test_bad_values_are_named():
    with pytest.raises(ConfigError, match=r"observation.noise.std must be .* not -0.1"):
        LowPassNoise(std=-0.1)
    with pytest.raises(ConfigError, match=r"observation.noise.cutoff must be .* not 0"):
        LowPassNoise(std=0.1, cutoff=0)
