from __future__ import annotations

import pytest
import torch

from fedsink.data.deformation import ElasticDeformation
from fedsink.errors import ConfigError
from fedsink.privacy import Stream


def stream() -> Stream:
    return Stream(b"key", "observation")


def ramps(n: int, height: int, width: int) -> torch.Tensor:
    """Pictures with two channels: the vertical and the horizontal place of a pixel."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns]).float().expand(n, 2, height, width)


def displacements(std: float, length: float, height: int, width: int) -> torch.Tensor:
    """u in pixels (n, 2, H, W), read off ramps; small enough to stay in the picture's middle."""
    images = ramps(8000, height, width)
    return ElasticDeformation(std, length)(images, stream()) - images


def test_the_field_has_the_stated_deviation_and_correlation() -> None:
    u = displacements(std=0.05, length=0.2, height=10, width=15)[:, :, 3:7, 3:12]
    # τ = 0.05 and ℓ = 0.2 of the shorter side of 10 pixels: half a pixel, over two pixels.
    assert u.std((0, 2, 3)).tolist() == pytest.approx([0.5, 0.5], rel=0.02)
    assert u.mean((0, 2, 3)).abs().max() < 0.02

    def correlation(down: int, right: int) -> torch.Tensor:
        height, width = u.shape[2:]
        here, there = u[:, :, : height - down, : width - right], u[:, :, down:, right:]
        return (here * there).mean((0, 2, 3)) / 0.25

    for down, right in ((0, 2), (2, 0), (1, 1), (3, 4)):
        expected = torch.tensor(-(down**2 + right**2) / (2 * 2.0**2)).exp().item()
        assert correlation(down, right).tolist() == pytest.approx([expected] * 2, abs=0.03)
    assert (u[:, 0] * u[:, 1]).mean().abs() < 0.01


def test_bent_pictures_stay_in_range_and_uniform_ones_stay_as_they_are() -> None:
    images = torch.rand(50, 3, 8, 8)
    deformed = ElasticDeformation(std=0.2)(images, stream())
    assert deformed.shape == images.shape
    assert images.min() <= deformed.min() < deformed.max() <= images.max()
    grey = torch.full((50, 1, 8, 8), 0.3)
    assert torch.allclose(ElasticDeformation(std=0.2)(grey, stream()), grey)


def test_channels_move_together() -> None:
    images = torch.rand(20, 1, 8, 8).expand(20, 3, 8, 8)
    deformed = ElasticDeformation(std=0.1)(images, stream())
    assert torch.equal(deformed[:, 0], deformed[:, 1])
    assert not torch.allclose(deformed, images)


def test_a_picture_s_field_depends_on_its_place_and_the_stream_alone() -> None:
    deform, images = ElasticDeformation(std=0.1), torch.rand(1, 1, 8, 8).expand(8, 1, 8, 8)
    few, many = deform(images[:3], stream()), deform(images, stream())
    assert torch.equal(few, many[:3])
    assert not torch.equal(few[0], few[1])
    assert not torch.equal(few, deform(images[:3], Stream(b"other", "deformation")))


def test_no_deformation_changes_nothing() -> None:
    images = torch.rand(3, 1, 8, 8)
    assert ElasticDeformation()(images, stream()) is images
    assert ElasticDeformation(std=0.1)(images[:0], stream()).shape == (0, 1, 8, 8)


def test_bad_values_of_bends_are_named() -> None:
    with pytest.raises(ConfigError, match=r"observation.deformation.std must be .* not -0.1"):
        ElasticDeformation(std=-0.1)
    with pytest.raises(ConfigError, match=r"observation.deformation.length must be .* not 0"):
        ElasticDeformation(std=0.1, length=0)
