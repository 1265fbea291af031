"""The grid on which a privacy loss distribution is trusted.

Over many compositions the answer depends on the discretisation interval: too coarse a grid rounds
every loss up, too fine a one accumulates floating-point error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ERROR = 5e-12
"""How much less than δ a composed privacy loss distribution may find, at most: its Fourier
transforms round. Up to 1.8e-12 less was measured, against exact Gaussians."""

COARSEST = 1.0
MANY_USES = 100_000

_GRID = 1e-4
_FINEST = 2.5e-5
_AGREE = 0.01
_MEANINGLESS = 1e5  # an ε beyond this is no guarantee, and a loss distribution that wide is slow


def grid_for(rate: float, sigma: float, uses: int) -> float:
    """Returns 1e-4, or the next power of ten that keeps distributions to some 10^7 points."""
    # Infinite beyond ε = 1e5, where nothing is private.
    one_use = 0.5 * sigma**-2 + 10 / sigma
    composed = loss_scale(rate, sigma, uses)
    if composed > _MEANINGLESS:
        return math.inf
    return 10.0 ** math.ceil(math.log10(max(_GRID, one_use / 2e5, composed / 1e7)) - 1e-9)


def cross_checked(
    on_grid: Callable[[float], float], grid: float, rate: float, sigma: float, uses: int
) -> tuple[float, bool]:
    """Returns an upper bound on ε, and whether it is settled; `on_grid` is ε at an interval."""
    # From 1e5 uses, and where the grid is coarse against the loss of one use, the grid is halved
    # until two answers agree within 1 %, and the larger one counts. Where none agree the least is
    # returned as not settled: still a bound for few uses, not to be trusted for many.
    bounds = [on_grid(grid)]
    one_use = usual_loss(rate, sigma)
    fine_enough = one_use >= 10 * grid or uses * grid <= _AGREE * bounds[0] / 2
    if uses < MANY_USES and fine_enough:
        return bounds[0], True
    while grid / 2 >= _FINEST and one_use >= grid / 4:
        grid /= 2
        bounds.append(on_grid(grid))
        if abs(bounds[-2] - bounds[-1]) <= _AGREE * bounds[-1]:
            return max(bounds[-2:]), True
    return min(bounds), False


def epsilon_of(composed: Any, delta: float) -> float:
    """Returns ε of a composed distribution at δ, less `ERROR` where that is over 0.05 % of δ."""
    # ∞ where δ is no more than the error.
    if delta < 2e3 * ERROR:
        delta -= ERROR
    return float(composed.get_epsilon_for_delta(delta)) if delta > 0.0 else math.inf


def loss_scale(rate: float, sigma: float, uses: int) -> float:
    """Returns a closed-form guess of the composed loss's size, which only steers searches."""
    # The smaller of two estimates, mean + 5 std: the central limit of the subsampled mechanism, and
    # the unsampled Gaussian over the uses that the record can expect to be sampled in.
    hits = min(uses, rate * uses + 5 * math.sqrt(rate * uses) + 5)
    mu = min(_loss_std(rate, sigma) * math.sqrt(uses), math.sqrt(hits) / sigma)
    return mu * mu / 2 + 5 * mu


def usual_loss(rate: float, sigma: float) -> float:
    """Returns the loss of most uses: where σ is small most lose about q, and a few a lot."""
    return min(rate, _loss_std(rate, sigma))


def _loss_std(rate: float, sigma: float) -> float:
    """Returns the central-limit std of the privacy loss of one use, q·√(e^{1/σ²} − 1)."""
    exponent = sigma**-2
    return rate * math.sqrt(math.expm1(exponent)) if exponent < 700 else math.inf
