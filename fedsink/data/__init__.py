"""What is public about data: its description, its maps and its views.

Reading and dealing out records is deliberately not re-exported: `fedsink.data.sources.load` and
`fedsink.data.partition` are for code beside the private data, and server and strategies never
import them.
"""

from __future__ import annotations

from fedsink.data.labelled import LabelledData
from fedsink.data.maps import (
    DctDirection,
    L1Ball,
    L2Ball,
    Map,
    NonNegativeDirection,
    PixelRange,
    PointBall,
    map_from_dict,
)
from fedsink.data.spec import DataSpec
from fedsink.data.views import DctView, PixelView, View, view_from_dict

__all__ = [
    "DataSpec",
    "DctDirection",
    "DctView",
    "L1Ball",
    "L2Ball",
    "LabelledData",
    "Map",
    "NonNegativeDirection",
    "PixelRange",
    "PixelView",
    "PointBall",
    "View",
    "map_from_dict",
    "view_from_dict",
]
