"""ε and δ of several plans on the same records, by the dominating pairs of all their uses.

A plan that was fixed without looking at what earlier ones released composes with them as rounds do:
the loss distributions of all uses are convolved. Where nothing is sampled, all uses are one
Gaussian, of 1/σ² = Σ 1/σ_i².

>>> plans = [Spent((Uses("gaussian", 1.0, 4.0, 8),)), Spent((Uses("gaussian", 1.0, 2.0, 2),))]
>>> round(epsilon_of(plans, 1e-5), 6), round(gaussian_epsilon(1.0, 1e-5), 6)
(4.377178, 4.377178)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from fedsink.privacy.clips import Clip
    from fedsink.privacy.sampling import Schedule

_UNTOLD = 1e-9  # probability that the least μ leaves out: a grid of losses tells no less
_LARGEST, _STEPS = 60.0, 2001  # ε at which a curve is read, from 0
_BISECTIONS = 60
_ONE = (1.0, 1)  # distance and rounds of a use


class Uses(NamedTuple):
    """Uses of one dominating pair: how many, at which rate q and noise multiplier σ.

    `pair` is ``"gaussian"`` (unsampled), ``"poisson"`` (a Poisson-subsampled Gaussian) or one of
    `fedsink.privacy.accounting.replacement`.
    """

    pair: str
    rate: float
    sigma: float
    number: int

    @property
    def rounds(self) -> int:
        """Number of all rounds."""
        return DISTANCES.get(self.pair, _ONE)[1] * self.number

    @property
    def multiplier(self) -> float:
        """σ over the distance of a round's two means."""
        return self.sigma / DISTANCES.get(self.pair, _ONE)[0]

    @property
    def whole(self) -> float | None:
        """Multiplier of the one Gaussian that all uses are without sampling; None with it."""
        unsampled = self.rate == 1.0 or self.pair == "gaussian"
        return self.multiplier / math.sqrt(self.rounds) if unsampled else None


class Spent(NamedTuple):
    """Uses of a plan, by what changes of a unit, and the δ that its full batches cost.

    A second entry of `changes` are the uses that see a change of the label.
    """

    changes: tuple[Uses, ...]
    overflow: float = 0.0


def replacement(
    rate: float, sigma: float, uses: int, clip: Clip, schedule: Schedule
) -> tuple[Uses, ...]:
    """Returns the uses that see a record replaced: those of its content, and of its label.

    σ is the noise std over the *clip's* sensitivity (Δ, 2Δ or 2C). The clip names the pair of a
    changed content; in a schedule of several classes a change of label moves a record to others'
    rounds.
    """
    if clip.replacement == "opposite":
        sigma *= clip.sensitivity / clip.bound  # the two means lie at plus and minus the bound
    pairs = [clip.replacement, *(["two-labels"] if schedule.classes > 1 else [])]
    return tuple(Uses(pair, rate, sigma, uses) for pair in pairs)


def epsilon_of(plans: Sequence[Spent], delta: float) -> float:
    """Returns ε(δ) of several plans on the same records, each fixed before the first began.

    Infinite where full batches already cost δ. Where no grid of losses serves, the sum of the
    plans' ε, each at a part of δ.
    """
    left = checks.failure_probability(delta) - sum(plan.overflow for plan in plans)
    return max(_epsilon(uses, left) for uses in _ways(plans)) if left > 0.0 else math.inf


def _ways(plans: Sequence[Spent]) -> list[tuple[Uses, ...]]:
    """Returns the uses of all plans for each way in which a unit may change."""
    ways = range(max(len(plan.changes) for plan in plans))
    return [tuple(plan.changes[min(way, len(plan.changes) - 1)] for plan in plans) for way in ways]


@lru_cache(maxsize=1024)
def _epsilon(uses: tuple[Uses, ...], delta: float) -> float:
    if (multiplier := _gaussian(uses)) is not None:
        return gaussian_epsilon(multiplier, delta)
    if (grid := _grid(uses)) <= grids.COARSEST and delta > grids.ERROR:
        # The cross-check asks for the part whose loss a grid resolves least, and for all uses.
        worst = min(uses, key=lambda part: grids.usual_loss(part.rate, part.multiplier))
        number = sum(part.rounds for part in uses)
        bound, settled = grids.cross_checked(
            lambda interval: grids.epsilon_of(_composed(uses, interval), delta),
            grid, worst.rate, worst.multiplier, number,
        )  # fmt: skip
        if settled or number < grids.MANY_USES:
            return bound
    if len(uses) > 1:
        return sum(_epsilon((part,), delta / len(uses)) for part in uses)
    [part] = uses
    if part.pair == "poisson":
        return pld_epsilon(part.rate, part.sigma, part.number, delta)
    return gaussian_epsilon(_gaussian([part._replace(rate=1.0)]) or 0.0, delta)


def trade_off(plans: Sequence[Spent], beside: float = 0.0, alpha: float = 1e-3) -> dict[str, float]:
    """Returns what δ(ε) of several plans says of a test for a record: power, a Gaussian above it.

    A test with a false-positive rate α has a true-positive rate of at most
    ``min over ε of min(e^ε·α + δ(ε), 1 − e^−ε·(1 − α − δ(ε)))`` (Kairouz, Oh, Viswanath 2015,
    Theorem 2.1). `mu` is the least μ for which that of N(0, 1) against N(μ, 1) is nowhere lower
    (Dong, Roth, Su 2022, Corollary 1), but for a probability of `but_for`.

    Args:
        plans: what they spend.
        beside: a part of δ beside that of full batches.
        alpha: α in (0, 1).

    >>> gaussian = trade_off([Spent((Uses("gaussian", 1.0, 2.0, 4),))])
    >>> round(gaussian["mu"], 6), round(gaussian["true_positive_rate"], 4)
    (1.0, 0.0183)
    """
    found = [_curve(uses, checks.failure_probability(alpha)) for uses in _ways(plans)]
    beside += sum(plan.overflow for plan in plans)
    return {
        "false_positive_rate": alpha,
        "true_positive_rate": min(1.0, max(rate for rate, _ in found) + beside),
        "mu": max(mu for _, mu in found),
        "but_for": _UNTOLD + beside,
    }


@lru_cache(maxsize=256)
def _curve(uses: tuple[Uses, ...], alpha: float) -> tuple[float, float]:
    """Returns the largest true-positive rate at α, and the least μ."""
    multiplier = _gaussian(uses)
    grid, many = _grid(uses), sum(part.rounds for part in uses) >= grids.MANY_USES
    if multiplier is None and (grid > grids.COARSEST or many):  # a sampled use is no worse
        multiplier = _gaussian([part._replace(rate=1.0) for part in uses])
    if multiplier is not None:
        return float(ndtr(ndtri(alpha) + 1.0 / multiplier)), 1.0 / multiplier
    composed = _composed(uses, grid)
    last = min(_LARGEST, composed.get_epsilon_for_delta(_UNTOLD))
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


def _gaussian(uses: Sequence[Uses]) -> float | None:
    """Returns the multiplier of the Gaussian that all uses are; None where some are sampled."""
    whole = [part.whole for part in uses]
    return None if None in whole else sum(m**-2 for m in whole if m is not None) ** -0.5


def _grid(uses: Sequence[Uses]) -> float:
    """Returns the grid on which all uses are composed; ∞ where none serves."""
    return max(
        grids.grid_for(part.rate, part.multiplier, part.rounds)
        if part.whole is None
        else grids.grid_for(1.0, part.whole, 1)
        for part in uses
    )


@lru_cache(maxsize=8)
def _composed(uses: tuple[Uses, ...], grid: float) -> Any:
    library = checks.require("dp_accounting.pld.privacy_loss_distribution")
    whole = None
    for part in uses:
        if part.whole is not None:
            one = library.from_gaussian_mechanism(part.whole, value_discretization_interval=grid)
        elif part.pair == "poisson":
            one = subsampled_pld(part.rate, part.sigma, grid).self_compose(part.number)
        else:
            one = composed_pld(part.pair, part.rate, part.sigma, part.number, grid)
        whole = one if whole is None else whole.compose(one)
    return whole
