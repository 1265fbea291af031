"""ε and δ of several plans on the same records, by the dominating pairs of all their uses.

A plan that was fixed without looking at what earlier ones released composes with them as rounds do:
the loss distributions of all uses are convolved. Where nothing is sampled, all uses are one
Gaussian, of 1/σ² = Σ 1/σ_i².

>>> first, second = Uses("gaussian", 1.0, 4.0, 8), Uses("gaussian", 1.0, 2.0, 2)
>>> round(epsilon_of_uses([[first, second]], 1e-5), 6)
4.377178
>>> round(gaussian_epsilon(1.0, 1e-5), 6)
4.377178
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from fedsink.privacy.accounting import grids
from fedsink.privacy.accounting.accountants import (
    gaussian_epsilon,
    pld_epsilon,
    subsampled_pld,
)
from fedsink.privacy.accounting.replacement import DISTANCES, composed_pld
from fedsink.values import privacy_checks as checks

BUT_FOR = 1e-9
"""Probability that the least μ leaves out: a grid of losses does not tell less."""

_LARGEST, _STEPS = 60.0, 2001  # ε at which a curve is read, from 0
_BISECTIONS = 60


class Uses(NamedTuple):
    """Uses of one dominating pair.

    `pair` is ``"gaussian"`` (unsampled), ``"poisson"`` (a Poisson-subsampled Gaussian) or one of
    `fedsink.privacy.accounting.replacement`; `sigma` is its noise multiplier.
    """

    pair: str
    rate: float
    sigma: float
    number: int

    @property
    def unsampled(self) -> float | None:
        """Multiplier of the one Gaussian that all uses are without sampling; None with it."""
        if self.rate < 1.0 and self.pair != "gaussian":
            return None
        distance, rounds = DISTANCES.get(self.pair, (1.0, 1))
        return self.sigma / (distance * math.sqrt(rounds * self.number))


def epsilon_of_uses(changes: Sequence[Sequence[Uses]], delta: float) -> float:
    """Returns ε(δ) of all uses of several plans, for the worst of what a neighbour may change.

    Args:
        changes: for each way in which a unit may change, the uses that see it.
        delta: δ in (0, 1).

    Where no grid of losses serves, ε is the sum of those of the single uses, each at a part of δ.
    """
    return max(_epsilon(tuple(uses), checks.failure_probability(delta)) for uses in changes)


@lru_cache(maxsize=1024)
def _epsilon(uses: tuple[Uses, ...], delta: float) -> float:
    if (multiplier := _gaussian(uses)) is not None:
        return gaussian_epsilon(multiplier, delta)
    if (grid := _grid(uses)) <= grids.COARSEST and delta > grids.ERROR:
        # The cross-check asks for the part whose loss a grid resolves least, and for all uses.
        worst = min(uses, key=lambda part: grids.usual_loss(part.rate, part.sigma))
        number = _number(uses)
        bound, settled = grids.cross_checked(
            lambda interval: grids.epsilon_of(_composed(uses, interval), delta),
            grid, worst.rate, worst.sigma, number,
        )  # fmt: skip
        if settled or number < grids.MANY_USES:
            return bound
    if len(uses) > 1:
        return sum(_epsilon((part,), delta / len(uses)) for part in uses)
    [part] = uses
    if part.pair == "poisson":
        return pld_epsilon(part.rate, part.sigma, part.number, delta)
    return gaussian_epsilon(_gaussian([part._replace(rate=1.0)]) or 0.0, delta)


def trade_off(
    changes: Sequence[Sequence[Uses]], alpha: float = 1e-3, beside: float = 0.0
) -> dict[str, float]:
    """Returns what δ(ε) of all uses says of a test for a record: power, and a Gaussian above it.

    A test with a false-positive rate α has a true-positive rate of at most
    ``min over ε of min(e^ε·α + δ(ε), 1 − e^−ε·(1 − α − δ(ε)))`` (Kairouz, Oh, Viswanath 2015,
    Theorem 2.1). `mu` is the least μ for which that of N(0, 1) against N(μ, 1) is nowhere lower
    (Dong, Roth, Su 2022, Corollary 1), but for a probability of `but_for`.

    Args:
        changes: as in `epsilon_of_uses`.
        alpha: α in (0, 1).
        beside: a part of δ that no ε pays for, as that of a full batch.

    >>> gaussian = trade_off([[Uses("gaussian", 1.0, 2.0, 4)]])
    >>> round(gaussian["mu"], 6), round(gaussian["true_positive_rate"], 4)
    (1.0, 0.0183)
    """
    checks.failure_probability(alpha)
    found = [_curve(tuple(uses), alpha) for uses in changes]
    power = min(1.0, max(rate for rate, _ in found) + beside)
    return {
        "false_positive_rate": alpha,
        "true_positive_rate": power,
        "mu": max(mu for _, mu in found),
        "but_for": BUT_FOR + beside,
    }


@lru_cache(maxsize=256)
def _curve(uses: tuple[Uses, ...], alpha: float) -> tuple[float, float]:
    """Returns the largest true-positive rate at α, and the least μ."""
    multiplier = _gaussian(uses)
    if multiplier is None and (
        _grid(uses) > grids.COARSEST or _number(uses) >= grids.MANY_USES
    ):  # a sampled use is no worse than one that is not
        multiplier = _gaussian([part._replace(rate=1.0) for part in uses])
    if multiplier is not None:
        return float(ndtr(ndtri(alpha) + 1.0 / multiplier)), 1.0 / multiplier
    composed = _composed(uses, _grid(uses))
    last = min(_LARGEST, composed.get_epsilon_for_delta(BUT_FOR))
    epsilons = np.linspace(0.0, last, _STEPS)
    both = (composed._pmf_remove.to_dense_pmf(), composed._pmf_add.to_dense_pmf())
    deltas = np.max([_deltas(pmf, epsilons) for pmf in both], axis=0) + grids.ERROR
    powers = np.minimum(
        np.exp(epsilons) * alpha + deltas, 1.0 - np.exp(-epsilons) * (1.0 - alpha - deltas)
    )
    # Between two ε a δ is at most that of the first, and a Gaussian's at least that of the second.
    low, high = np.full(_STEPS - 1, 1e-9), np.full(_STEPS - 1, 1e3)
    for _ in range(_BISECTIONS):
        mu = np.sqrt(low * high)
        first = log_ndtr(mu / 2 - epsilons[1:] / mu)
        second = epsilons[1:] + log_ndtr(-mu / 2 - epsilons[1:] / mu)
        enough = np.exp(first) * -np.expm1(np.minimum(0.0, second - first)) >= deltas[:-1]
        low, high = np.where(enough, low, mu), np.where(enough, mu, high)
    return float(powers.min()), float(high.max())


def _deltas(pmf: Any, epsilons: np.ndarray) -> np.ndarray:
    """Returns δ(ε) = Σ over losses above ε of p·(1 − e^(ε − loss)), for many ε ≥ 0 at once."""
    losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    above = losses > 0.0
    losses, mass = losses[above], pmf._probs[above]
    tails = [np.append(np.cumsum(p[::-1])[::-1], 0.0) for p in (mass, mass * np.exp(-losses))]
    place = np.searchsorted(losses, epsilons, side="right")
    return np.asarray(pmf._infinity_mass + tails[0][place] - np.exp(epsilons) * tails[1][place])


def _number(uses: Sequence[Uses]) -> int:
    return sum(DISTANCES.get(part.pair, (1.0, 1))[1] * part.number for part in uses)


def _gaussian(uses: Sequence[Uses]) -> float | None:
    """Returns the multiplier of the Gaussian that all uses are; None where some are sampled."""
    multipliers = [part.unsampled for part in uses]
    if None in multipliers:
        return None
    return sum(m**-2 for m in multipliers if m is not None) ** -0.5


def _grid(uses: Sequence[Uses]) -> float:
    """Returns the grid on which all uses are composed; ∞ where none serves."""
    each = [(part, DISTANCES.get(part.pair, (1.0, 1))) for part in uses if part.unsampled is None]
    sampled = max(grids.grid_for(p.rate, p.sigma / d, r * p.number) for p, (d, r) in each)
    whole = [multiplier for part in uses if (multiplier := part.unsampled) is not None]
    return max([sampled, *(grids.grid_for(1.0, multiplier, 1) for multiplier in whole)])


@lru_cache(maxsize=32)
def _composed(uses: tuple[Uses, ...], grid: float) -> Any:
    library = checks.require("dp_accounting.pld.privacy_loss_distribution")
    whole = None
    for part in uses:
        if (multiplier := part.unsampled) is not None:
            one = library.from_gaussian_mechanism(multiplier, value_discretization_interval=grid)
        elif part.pair == "poisson":
            one = subsampled_pld(part.rate, part.sigma, grid).self_compose(part.number)
        else:
            one = composed_pld(part.pair, part.rate, part.sigma, part.number, grid)
        whole = one if whole is None else whole.compose(one)
    return whole
