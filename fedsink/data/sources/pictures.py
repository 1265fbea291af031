"""One picture file as a tensor of a given size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsink.errors import DataError

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of a picture with so many channels."""


def read_picture(path: str | Path, shape: tuple[int, ...]) -> Tensor:
    """Return a picture as uint8 (channels, height, width), scaled to cover it and cropped.

    The picture is scaled (antialiased) until it covers the target and cropped at the centre.

    Args:
        path: a file of any format that Pillow reads.
        shape: (1 or 3, height, width); colours become grey, or grey becomes colours.

    Raises:
        DataError: where the file cannot be read.
    """
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(path) as opened:
            picture = opened.convert(MODES[channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable picture; replace or remove it.") from error
    scale = max(height / picture.height, width / picture.width)
    size = (math.ceil(picture.width * scale - 1e-9), math.ceil(picture.height * scale - 1e-9))
    resized = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
    pixels = np.array(resized.crop((left, top, left + width, top + height)))
    return torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1)
