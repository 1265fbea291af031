"""The Haar transform is a rotation, and its threshold removes noise and keeps edges."""

from __future__ import annotations

import math

import pytest
import torch

from fedsink.data.wavelets import denoised, haar, inverse_haar

SHAPES = [(5, 1, 28, 28), (2, 3, 8, 8), (3, 1, 6, 10), (1, 1, 7, 7)]


def images(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_a_rotation(shape: tuple[int, ...]) -> None:
    x = images(shape)
    average, details = haar(x)
    energy = average.square().sum() + sum(level.square().sum() for level in details)
    assert float(energy) == pytest.approx(float(x.square().sum()), rel=1e-12)
    assert torch.allclose(inverse_haar(average, details), x, atol=1e-12)


def test_28_pixels_have_two_levels() -> None:
    average, details = haar(images(SHAPES[0]))
    assert average.shape == (5, 1, 7, 7)
    assert [tuple(level.shape[2:]) for level in details] == [(3, 14, 14), (3, 7, 7)]


def test_a_square_that_rises_to_the_right_has_one_detail() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).reshape(1, 1, 2, 2)
    average, (level,) = haar(x)
    assert float(average) == 1.0
    assert level.flatten().tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_threshold_is_universal(channels: int) -> None:
    """A detail just below std·√(2 ln n) vanishes, one above shrinks by it, either sign."""
    std, threshold = 0.3, 0.3 * math.sqrt(2 * math.log(channels * 64))
    average, details = haar(torch.zeros(1, channels, 8, 8, dtype=torch.float64))
    details[0][0, 0, 1, 2, 2] = 0.999 * threshold
    details[1][0, 0, 0, 1, 1] = -threshold - 0.25
    _, kept = haar(denoised(inverse_haar(average, details), std))
    assert float(kept[0].abs().max()) == pytest.approx(0.0, abs=1e-12)
    assert float(kept[1][0, 0, 0, 1, 1]) == pytest.approx(-0.25)


def test_noise_leaves_and_an_edge_stays() -> None:
    """For a half-black picture the mean squared error falls to less than a third."""
    random = torch.Generator().manual_seed(9)
    clean = torch.zeros(200, 1, 16, 16)
    clean[..., 8:] = 4.0
    noisy = clean + torch.randn(clean.shape, generator=random)
    error = float((denoised(noisy, 1.0) - clean).square().mean())
    assert error < 1 / 3
    assert error > 1 / 256  # the averages keep their noise


def test_no_images_are_no_trouble() -> None:
    assert denoised(torch.zeros(0, 1, 28, 28), 1.0).shape == (0, 1, 28, 28)
