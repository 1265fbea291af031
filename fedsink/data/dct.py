"""The orthonormal two-dimensional discrete cosine transform (DCT-II) and its low-pass bands.

For an H×W image x the coefficient at frequency (i, j) is

    X[i, j] = s_H(i) s_W(j) Σ_{a,b} x[a, b] cos(π(a + ½)i / H) cos(π(b + ½)j / W),

with s_n(0) = √(1/n) and s_n(k) = √(2/n) otherwise, so the full transform is a rotation: it keeps
L2 norms, and keeping only some of the coefficients (a *band*) cannot enlarge them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedsink.errors import ConfigError

MOST_COSINES = 1 << 28
"""Values of a basis, frequencies times pixels: all frequencies of 128×128."""

Band = tuple[tuple[int, int], ...]
"""Frequencies (i, j), i vertical and j horizontal, in the order of the coefficients."""


def disc(height: int, width: int, radius: float, dc: bool = True) -> Band:
    """Returns the frequencies with √(i² + j²) < radius, row by row.

    The inequality is strict: 28×28 at radius 14 keeps 166 of 784 coefficients, and 165 with
    `dc=False`, which drops the mean brightness (0, 0); 8×8 at radius 6 keeps 33.
    """
    return tuple(
        (i, j)
        for i in range(height)
        for j in range(width)
        if math.hypot(i, j) < radius and (dc or (i, j) != (0, 0))
    )


def half_band(height: int, width: int, radius: float | None) -> Band:
    """Returns `disc` of this radius; None stands for half the shorter side."""
    return disc(height, width, min(height, width) / 2 if radius is None else radius)


def block(height: int, width: int, size: int, dc: bool = True) -> Band:
    """Returns the low-frequency square 0 ≤ i, j < size; `dc=False` leaves out (0, 0)."""
    return tuple(
        (i, j)
        for i in range(min(size, height))
        for j in range(min(size, width))
        if dc or (i, j) != (0, 0)
    )


def check_size(frequencies: int, height: int, width: int) -> None:
    """Refuses a basis that is too large to be built."""
    if frequencies * height * width > MOST_COSINES:
        raise ConfigError(
            f"{frequencies:,} frequencies of {height}×{width} pixels have "
            f"{frequencies * height * width:,} cosines, and {MOST_COSINES:,} are the most: keep "
            "fewer frequencies (radius, block), or choose smaller pictures."
        )


def cosine_matrix(n: int) -> Tensor:
    """Returns the orthonormal n×n DCT-II matrix in float64; row k is frequency k."""
    k = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi / n * torch.outer(k, k + 0.5)) * math.sqrt(2.0 / n)
    matrix[0] *= math.sqrt(0.5)
    return matrix


@lru_cache(maxsize=64)
def basis(
    height: int,
    width: int,
    band: Band,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Returns the rows of the 2-D DCT for `band`: a (len(band), height·width) orthonormal matrix.

    Coefficients of flattened images are `pixels @ basis.T`, and `coefficients @ basis` is the
    inverse transform with every other coefficient at zero. The tensor is shared: do not write
    into it.
    """
    check_size(len(band), height, width)
    vertical, horizontal = cosine_matrix(height), cosine_matrix(width)
    rows = torch.tensor([i for i, _ in band], dtype=torch.long)
    columns = torch.tensor([j for _, j in band], dtype=torch.long)
    product = vertical[rows].unsqueeze(2) * horizontal[columns].unsqueeze(1)
    return product.reshape(len(band), height * width).to(device=device, dtype=dtype)
