"""Discrete Gaussian variates against their exact law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_ndtr

from fedsink.errors import PrivacyError
from fedsink.privacy.randomness.discrete_gaussian import SMOOTHING, discrete_gaussian
from fedsink.privacy.randomness.noise import Stream, integers_each
from fedsink.privacy.randomness.secure import SecureStream

MANY = 400_000


def pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The integers within 12 scales, and their probabilities under N_Z(0, scale²)."""
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    weights = np.exp(-(support**2) / (2 * scale**2))
    return support, weights / weights.sum()


def chi_square(values: np.ndarray, scale: float) -> float:
    """p-value of the hypothesis that integers are from N_Z(0, scale²)."""
    support, law = pmf(scale)
    clipped = np.clip(values, support[0], support[-1])
    counts = np.bincount(clipped - support[0], minlength=len(support))
    kept = law * len(values) > 10
    expected = np.append(law[kept], law[~kept].sum()) * len(values)
    found = np.append(counts[kept], counts[~kept].sum())
    return float(stats.chisquare(found, expected).pvalue)


@pytest.mark.parametrize("scale", [SMOOTHING, 3.2, 5.0, 40.0])
def test_variates_have_the_exact_law(scale: float) -> None:
    values = Stream(b"key", "law").integers(MANY, scale).numpy()
    assert chi_square(values, scale) > 1e-6
    assert chi_square(values, scale * 2 / 3) < 1e-12
    assert chi_square(values, scale * 3 / 2) < 1e-12
    assert chi_square(values + 1, scale) < 1e-12 or scale > 10


@pytest.mark.parametrize("scale", [3.0, 1e3, 2.0**30, 2.0**50])
def test_the_variance_is_the_scales_square(scale: float) -> None:
    values = Stream(b"key", "variance").integers(MANY, scale).double()
    spread = (2 / MANY) ** 0.5  # one standard deviation of a variance, relative
    assert float(values.square().mean()) / scale**2 == pytest.approx(1.0, abs=6 * spread)
    assert abs(float(values.mean())) < 6 * scale / MANY**0.5


def test_the_polynomial_inverts_the_law_of_the_integers_around_a_gaussian() -> None:
    """F(t) = Σ_{j≥0} exp(−(t − j)²/2η²)/(√(2π)η) at the polynomial's value is Φ(z)."""
    z = torch.linspace(-8.3, -1e-3, 2000, dtype=torch.float64)
    quotient = torch.stack([torch.zeros_like(z), z])
    # With s = η the Gaussian vanishes: the least integer above T is the variate.
    upper = discrete_gaussian(quotient, SMOOTHING).double().numpy()
    steps = np.arange(0, 140)[:, None]

    def law(t: np.ndarray) -> np.ndarray:
        exponents = -((t - steps) ** 2) / (2 * SMOOTHING**2)
        largest = exponents.max(0)
        total = np.log(np.exp(exponents - largest).sum(0)) + largest
        return np.asarray(total - math.log(math.sqrt(2 * math.pi) * SMOOTHING))

    target = log_ndtr(z.numpy())
    assert (law(upper - 1) <= target + 1e-9).all()
    assert (law(upper) >= target - 1e-9).all()


def test_streams_are_drawn_together_as_each_by_itself() -> None:
    streams = [Stream(b"key", number) for number in range(3)]
    each = torch.stack([Stream(b"key", number).integers(50, 7.0) for number in range(3)])
    together = integers_each(streams, 50, 7.0)
    assert torch.equal(together, each)
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_secure_integers_have_the_exact_law() -> None:
    pytest.importorskip("opendp")
    values = SecureStream().integers(20_000, 4.0)
    assert values.dtype == torch.int64
    assert chi_square(values.numpy(), 4.0) > 1e-9
    assert chi_square(values.numpy(), 4.0 * 2 / 3) < 1e-12
    assert chi_square(values.numpy(), 4.0 * 3 / 2) < 1e-12
    mixed = [Stream(b"key"), SecureStream()]
    assert torch.equal(integers_each(mixed, 9, 5.0)[0], Stream(b"key").integers(9, 5.0))


@pytest.mark.parametrize("scale", [0.0, -3.0, 2.9, math.nan, math.inf, 2.0**59])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(PrivacyError, match="scale of discrete noise must lie in"):
        discrete_gaussian(torch.zeros(2, 1, dtype=torch.float64), scale)
    if scale != 2.9:
        with pytest.raises(PrivacyError, match="scale of discrete noise must lie in"):
            SecureStream().integers(1, scale)
