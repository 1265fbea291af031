"""Data-independent maps f with a known sensitivity, applied before the noise of local mode.

>>> f = map_from_dict({"name": "dct_direction", "shape": [1, 28, 28], "block": 7})
>>> f.dimension, f.norm, round(f.sensitivity, 3)
(48, 'l1', 2.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.data.maps.balls import L1Ball, L2Ball, PixelRange, PointBall
from fedsink.data.maps.directions import DctDirection, NonNegativeDirection, PooledPower
from fedsink.data.maps.map import Map
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

_MAPS: tuple[type[Map], ...] = (
    *(DctDirection, NonNegativeDirection, PooledPower),
    *(PixelRange, L1Ball, L2Ball, PointBall),
)
MAPS: Registry[type[Map]] = Registry("map.name", {cls.name: cls for cls in _MAPS})


def map_from_dict(options: Mapping[str, Any]) -> Map:
    """Returns the map that `Map.to_dict` described.

    Raises:
        ConfigError: for an unknown name, an unknown or missing option, or a bad value.
    """
    f: Map = MAPS.from_dict(options)
    return f
