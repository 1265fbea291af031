"""The observation model: bends, then noise, and nothing where both are off."""

from __future__ import annotations

import math

import pytest
import torch

from fedsink.data import dct
from fedsink.errors import ConfigError, ModelError
from fedsink.models import Observation
from fedsink.models.observation import ElasticDeformation, LowPassNoise
from fedsink.privacy import Stream

BENDS, NOISE = ElasticDeformation(std=0.1), LowPassNoise(std=0.1)


def stream() -> Stream:
    return Stream(b"key", "observation")


def test_it_bends_and_then_adds_noise_from_streams_of_their_own() -> None:
    images = torch.rand(5, 1, 8, 8)
    bent = BENDS(images, stream().child("deformation"))
    both = NOISE(bent, stream().child("noise"))
    assert torch.equal(Observation(BENDS)(images, stream()), bent)
    assert torch.equal(Observation(BENDS, NOISE)(images, stream()), both)
    assert not torch.equal(bent, both)


def test_without_parts_it_changes_nothing() -> None:
    images = torch.rand(5, 1, 8, 8)
    assert Observation()(images, stream()) is images
    assert Observation().changes_nothing
    assert not Observation(BENDS).changes_nothing
    assert not Observation(noise=NOISE).changes_nothing
    assert not Observation(latent_range=1.2).changes_nothing


def test_wider_latents_are_for_those_who_draw_them() -> None:
    """A drawn picture or a point is returned unchanged."""
    for drawn in (torch.rand(5, 1, 8, 8), torch.rand(5, 2)):
        assert Observation(latent_range=1.2)(drawn, stream()) is drawn


def test_points_are_not_observed() -> None:
    points = torch.rand(5, 2)
    assert Observation()(points, stream()) is points
    with pytest.raises(ModelError, match=r"shape is \(2,\)"):
        Observation(BENDS)(points, stream())


def test_it_is_what_the_configuration_says() -> None:
    assert Observation.from_dict({}) == Observation()
    values = {
        "latent_range": 1.2,
        "deformation": {"std": 0.04, "length": 0.2},
        "noise": {"std": 0.1, "cutoff": 0.5},
    }
    bends, noise = ElasticDeformation(0.04, 0.2), LowPassNoise(0.1, 0.5)
    assert Observation.from_dict(values) == Observation(bends, noise, 1.2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"blur": 1}, r"Unknown key observation.blur; .* deformation, noise, latent_range"),
        ({"noise": {"sd": 1}}, r"Unknown key observation.noise.sd; .* std, cutoff"),
        ({"latent_range": 0}, "observation.latent_range must be a positive number, not 0"),
        (
            {"latent_range": "wide"},
            "observation.latent_range must be a positive number, not 'wide'",
        ),
        ({"noise": {"std": -1}}, r"observation.noise.std must be a number of at least 0, not -1"),
        ({"noise": {"cutoff": 0}}, r"observation.noise.cutoff must be a positive number, not 0"),
        ({"deformation": {"std": "much"}}, "observation.deformation.std must be .* not 'much'"),
        ({"deformation": 1}, "observation.deformation is a group of keys, not 1"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Observation.from_dict(values)


# Bends


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


# Noise


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


def test_bad_values_of_noise_are_named():
    with pytest.raises(ConfigError, match=r"observation.noise.std must be .* not -0.1"):
        LowPassNoise(std=-0.1)
    with pytest.raises(ConfigError, match=r"observation.noise.cutoff must be .* not 0"):
        LowPassNoise(std=0.1, cutoff=0)
