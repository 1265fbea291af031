"""Data-independent maps f with a known sensitivity, applied before the noise of local mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedsink.data.maps.balls import L1Ball, L2Ball, PixelRange
from fedsink.data.maps.base import Map
from fedsink.data.maps.directions import DctDirection, NonNegativeDirection
from fedsink.data.maps.points import PointBall
from fedsink.data.maps.pooled import PooledPower
from fedsink.errors import ConfigError

__all__ = [
    "MAPS",
    "DctDirection",
    "L1Ball",
    "L2Ball",
    "Map",
    "NonNegativeDirection",
    "PixelRange",
    "PointBall",
    "PooledPower",
    "map_from_dict",
]

MAPS: dict[str, type[Map]] = {
    cls.name: cls
    for cls in (
        DctDirection,
        NonNegativeDirection,
        PooledPower,
        PixelRange,
        L1Ball,
        L2Ball,
        PointBall,
    )
}


def map_from_dict(options: Mapping[str, Any]) -> Map:
    """Return the map that `Map.to_dict` described.

    Raises:
        ConfigError: for an unknown name, an unknown or missing option, or a bad value.
    """
    known = dict(options)
    name = known.pop("name", None)
    if name not in MAPS:
        raise ConfigError(f"map.name={name!r} is unknown; choose one of {', '.join(sorted(MAPS))}.")
    options_of = [field.name for field in fields(MAPS[name])]  # type: ignore[arg-type]
    unknown = sorted(set(known) - set(options_of))
    if unknown:
        raise ConfigError(
            f"the map {name} has no option {unknown[0]!r}; it has {', '.join(options_of)}."
        )
    try:
        return MAPS[name](**known)
    except TypeError as error:
        raise ConfigError(f"the map {name} lacks an option: {error}.") from error
