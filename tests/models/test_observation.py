"""The observation model: bends, then noise, and nothing where both are off."""

from __future__ import annotations

import pytest
import torch

from fedsink.errors import ConfigError, ModelError
from fedsink.models import Observation
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise
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
    """A picture that is drawn already, or a point, is passed on."""
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
