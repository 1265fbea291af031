"""Discrete Gaussian noise on the integers from two normal variates, for reproducible streams.

>>> import torch
>>> discrete_gaussian(torch.tensor([[0.0], [0.0]]), 10.0)
tensor([0])
"""

from __future__ import annotations

import math

import torch

from fedsink.errors import PrivacyError

SMOOTHING = 3.0
"""η, the parameter of the integers' own law around a continuous Gaussian.

Sums of exp(−(k − c)²/(2η²)) over all integers k are √(2π)·η for every c, up to a factor within
1 ± 2·exp(−2π²η²)·(1 + 10⁻²⁰⁰) = 1 ± 1.4·10⁻⁷⁷ (Poisson summation).
"""

# (T + ½)/z as a polynomial in z², see `discrete_gaussian`.
_QUANTILES = (
    2.9860393328229438, 1.3280360185219903e-05, -2.4567460268841473e-08, 5.481847521678669e-11,
    -1.3440652983757216e-13, 3.4472496284945483e-16, -8.305565684752442e-19,
    1.385980110795123e-21, -5.14785080843622e-25,
)  # fmt: skip


def discrete_gaussian(normals: torch.Tensor, scale: float) -> torch.Tensor:
    """Variates of N_Z(0, s²), P(x) ∝ exp(−x²/(2s²)), from two standard normal variates each.

    With z₁ of them, G = √(s² − η²)·z₁; then x is an integer with P(x | G) ∝ exp(−(x − G)²/(2η²)):
    exactly N_Z(0, s²) but for a factor within 1 ± 10⁻⁷⁶ (see `fedsink.privacy.integer_gaussian`).
    As the normaliser of the second law is the same for every G, P(x ≤ k | G) = F(k − G) with
    F(t) = Σ_{j≥0} exp(−(t − j)²/(2η²))/(√(2π)·η), an increasing function. So x = ⌈G + T⌉ with
    T = F⁻¹(Φ(z₂)), which a polynomial of z₂ gives within 5·10⁻¹³ for |z₂| ≤ 8.3.

    Distance from the law: normals are functions of uniforms with 52 bits, so that |z| ≤ 8.3 and an
    event of probability below 2⁻⁵² has another one; G and T are rounded to 2⁻⁵² of themselves. The
    noise is not hardened against whoever reads low bits: owners' secure noise is OpenDP's.

    Args:
        normals: (2, ...) float64.
        scale: s > η.

    Returns:
        (...) int64.

    Raises:
        PrivacyError: the scale is not a number from η to 2⁵⁸.
    """
    if not SMOOTHING <= scale <= 2.0**58:
        raise PrivacyError(
            f"the scale of discrete noise must lie in [{SMOOTHING:g}, 2^58], received {scale!r}: "
            "choose a finer or a coarser granularity."
        )
    first, second = normals
    square = second * second
    quotient = torch.full_like(square, _QUANTILES[-1])
    for coefficient in reversed(_QUANTILES[:-1]):
        quotient.mul_(square).add_(coefficient)
    steps = quotient.mul_(second).sub_(0.5)
    return steps.add_(first, alpha=math.sqrt(scale**2 - SMOOTHING**2)).ceil_().to(torch.int64)
