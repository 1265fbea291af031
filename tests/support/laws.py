"""Laws of noise: what is drawn has one, and would be told apart from a wider or a narrower one."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor


def assert_law(
    drawn: Tensor | np.ndarray, law: Any, accept: float = 1e-6, reject: float = 1e-9
) -> None:
    """Accepts SciPy's law, and rejects two thirds and three halves of the noise (KS)."""
    values = np.asarray(drawn, dtype=np.float64).ravel()
    assert stats.kstest(values, law.cdf).pvalue > accept
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * values, law.cdf).pvalue < reject
