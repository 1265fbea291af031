"""Data-independent maps f with a known sensitivity, applied before the noise of local mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.data.maps.balls import L1Ball, L2Ball, PixelRange
from fedsink.data.maps.base import Map
from fedsink.data.maps.directions import DctDirection, NonNegativeDirection
from fedsink.data.maps.points import PointBall
from fedsink.data.maps.pooled import PooledPower
from fedsink.registry import Registry

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

MAPS: Registry[type[Map]] = Registry(
    "map.name",
    {
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
    },
)


def map_from_dict(options: Mapping[str, Any]) -> Map:
    """Return the map that `Map.to_dict` described.

    Raises:
        ConfigError: for an unknown name, an unknown or missing option, or a bad value.
    """
    f: Map = MAPS.from_dict(options)
    return f
