"""The observation model: bends, then noise, and nothing where both are off."""

from __future__ import annotations

import math

import pytest
import torch

from fedsink.data import dct
from fedsink.data.deformation import ElasticDeformation
from fedsink.errors import ConfigError, ModelError
from fedsink.models import Observation
from fedsink.models.observation import LowPassNoise
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
