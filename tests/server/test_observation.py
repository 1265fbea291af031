"""The observation model read from a configuration."""

from __future__ import annotations

import pytest

from fedsink.errors import ConfigError, ModelError
from fedsink.models import Observation
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise
from fedsink.server.observation import observation_of


def test_it_is_what_the_configuration_says() -> None:
    assert observation_of({}) == Observation()
    values = {"deformation": {"std": 0.04, "length": 0.2}, "noise": {"std": 0.1, "cutoff": 0.5}}
    assert observation_of({"observation": values}) == Observation(
        ElasticDeformation(0.04, 0.2), LowPassNoise(0.1, 0.5)
    )


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"blur": 1}, ConfigError, r"Unknown key observation.blur; .* deformation, noise"),
        ({"noise": {"sd": 1}}, ConfigError, r"Unknown key observation.noise.sd; .* std, cutoff"),
        ({"noise": {"std": -1}}, ModelError, r"observation.noise.std .* got -1"),
        ({"deformation": {"std": "much"}}, ConfigError, "observation.deformation .* mistyped"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        observation_of({"observation": values})
