"""The observation model: bends, then noise, and nothing where both are off."""

from __future__ import annotations

import pytest
import torch

from fedsink.errors import ModelError
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


def test_points_are_not_observed() -> None:
    points = torch.rand(5, 2)
    assert Observation()(points, stream()) is points
    with pytest.raises(ModelError, match=r"shape is \(2,\)"):
        Observation(BENDS)(points, stream())
