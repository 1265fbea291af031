"""Numbers that a client may meet: ordinary ones, and those that break sums."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

EXTREMES = [0.0, 1e-30, 1.0, -3.0, 120.0, 1e4, -1e18, 3e38]
FINITE = st.sampled_from(EXTREMES)
HOSTILE = st.sampled_from([*EXTREMES, math.inf, -math.inf, math.nan])
ORDINARY = st.floats(-4.0, 4.0, width=32)
PUBLIC_AND_PRIVATE = st.sampled_from([(FINITE, HOSTILE), (ORDINARY, ORDINARY)])
"""What rows and records are drawn from: extremes alone would hide a sum that is not clipped."""

LAM = st.sampled_from([2.0**-40, 1e-9, 1e-6, 0.5, 1e6, 2.0**40])


@st.composite
def matrices(draw: st.DrawFn, entries: st.SearchStrategy[float], rows: int) -> Tensor:
    """(rows, 4) float32."""
    values = draw(st.lists(entries, min_size=4 * rows, max_size=4 * rows))
    return torch.tensor(values, dtype=torch.float32).reshape(rows, 4)
