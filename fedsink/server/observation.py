"""The observation model of a run, from its configuration."""

from __future__ import annotations

from fedsink.models import Observation
from fedsink.models.deformation import ElasticDeformation
from fedsink.models.low_pass import LowPassNoise
from fedsink.values import Config, strictly

_PARTS = {"deformation": ElasticDeformation, "noise": LowPassNoise}


def observation_of(config: Config) -> Observation:
    """Return what `observation.*` says is done to drawn pictures; without it, nothing.

    Raises:
        ConfigError: an unknown key.
        ModelError: a value out of range.
    """
    parts = {
        name: strictly(_PARTS[name], values, f"observation.{name}") if name in _PARTS else values
        for name, values in config.get("observation", {}).items()
    }
    return strictly(Observation, parts, "observation")
