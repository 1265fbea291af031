"""The comparisons at the half circle, as `tests/test_half_circle.py` has the losses of fedsink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_half_circle import distance


@pytest.mark.slow
def test_noise_on_both_sides_removes_it_too(tmp_path: Path) -> None:
    """Equation 15 of Reshetova et al.: the nearest law after the noise is the one before it."""
    assert distance(tmp_path / "both", "strategy.loss=noisy_w1", "strategy.batch=150") < 0.30


@pytest.mark.slow
def test_exact_transport_learns_the_noise(tmp_path: Path) -> None:
    """It is least at the distribution of the records."""
    assert distance(tmp_path / "run", "strategy.loss=unregularised", "strategy.batch=150") > 0.42
