"""ε of the Poisson-subsampled Gaussian composed over rounds, from several accountants.

The noise multiplier is σ = (noise std) / (sensitivity), and the adjacency is add/remove (zero-out).
Every figure is an upper bound on the true ε.

- ``"pld"`` (default): privacy loss distributions, dp_accounting, pessimistic connect-the-dots;
  without sampling (q = 1) the exact Gaussian (Balle and Wang 2018).
- ``"prv"``: privacy random variables (Gopi, Lee, Wutschitz 2021), Opacus; up to minutes.
- ``"rdp"``: Rényi DP, dp_accounting, with the improved conversion (Canonne, Kamath, Steinke 2020,
  Prop. 12).
- ``"rdp-opacus"``: the same from Opacus' own Rényi costs and conversion.

An installed package adds others:

    [project.entry-points."fedsink.accountants"]
    mine = "my_package.accounting:MINE"    # an `Accountant`
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erfcx, log_ndtr

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting import grids
from fedsink.registry import Registry
from fedsink.values import privacy_checks as checks


class Accountant(NamedTuple):
    """Bounds ε, from above, of a Poisson-subsampled Gaussian composed over uses.

    Attributes:
        epsilon: q, σ, uses and δ to ε.
        library: that computes it, as privacy.json names it.
    """

    epsilon: Callable[[float, float, int, float], float]
    library: str


_BISECTIONS = 200  # of an exact Gaussian
_WIDE = 1e3  # multipliers from which the two terms of an exact δ cancel
# Opacus' accountant takes minutes and some 4 GB for so many points, 0.2 kB each.
_MOST_POINTS = 2e7
_PRV_ERROR = 0.01  # of ε, Opacus' default; that of δ is δ/1000


def poisson_gaussian_epsilon(
    rate: float, sigma: float, uses: int, delta: float, accountant: str = "pld"
) -> float:
    """Returns ε(δ) of `uses` Poisson-subsampled Gaussians (q, σ a multiplier) under add/remove."""
    rate, sigma = checks.probability("rate", rate), checks.positive("sigma", sigma)
    uses, delta = checks.count("uses", uses), checks.failure_probability(delta)
    epsilon = ACCOUNTANTS.find(accountant).epsilon
    try:
        bound = epsilon(rate, sigma, uses, delta)
        return math.inf if math.isnan(bound) else max(0.0, bound)
    except PrivacyError:
        raise
    except (ArithmeticError, ValueError, MemoryError, RuntimeError) as error:
        raise PrivacyError(
            f"the accountant {accountant} has no answer at rate={rate:g}, sigma={sigma:g} and "
            f"{uses} uses ({type(error).__name__}): take pld."
        ) from error


def poisson_gaussian(rate: float, sigma: float, uses: int) -> Any:
    """Returns the event of `uses` Poisson-subsampled Gaussians as a `dp_accounting.DpEvent`.

    Args:
        rate: Sampling probability q in (0, 1].
        sigma: Noise multiplier, noise std / sensitivity; not a standard deviation.
        uses: In how many rounds one record may take part.
    """
    events = checks.require("dp_accounting")
    one = events.PoissonSampledDpEvent(
        checks.probability("rate", rate),
        events.GaussianDpEvent(checks.positive("sigma", sigma)),
    )
    return events.SelfComposedDpEvent(one, checks.count("uses", uses))


def check_accountant(accountant: object) -> str:
    """Returns the name of an accountant; raises PrivacyError for any other value."""
    ACCOUNTANTS.find(accountant)
    return str(accountant)


@lru_cache(maxsize=4096)
def rdp_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns ε by Rényi DP: composition adds the orders' costs, so any number of uses is cheap."""
    rdp = checks.require("dp_accounting.rdp")
    orders, one_use = rdp_curve(rate, sigma)
    with np.errstate(over="ignore", invalid="ignore"), quiet_absl():
        bound, _ = rdp.compute_epsilon(orders, uses * one_use, delta)
    return float(bound)


def rdp_opacus_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns ε by Rényi DP from Opacus, at the orders of dp_accounting."""
    rdp = checks.require("opacus.accountants.analysis.rdp")
    orders, one_use = _opacus_curve(rate, sigma)
    with warnings.catch_warnings():  # of a best order at the range's end: still an upper bound
        warnings.simplefilter("ignore")
        bound, _ = rdp.get_privacy_spent(orders=orders, rdp=uses * one_use, delta=delta)
    return max(0.0, float(bound))


@lru_cache(maxsize=4096)
def pld_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns ε by privacy loss distributions on a grid of 1e-4, cross-checked where it matters."""
    # Where no two grids agree the least bound is returned, from 1e5 uses the RDP bound. Beyond
    # ε = 1e5, where nothing is private, and for a δ that a grid cannot tell from its rounding, it
    # is `pld_epsilon_without_grid`.
    if (bound := pld_epsilon_without_grid(rate, sigma, uses, delta)) is not None:
        return bound
    grid = grids.grid_for(rate, sigma, uses)

    def on_grid(interval: float) -> float:
        return pld_epsilon_on_grid(rate, sigma, uses, delta, interval)

    bound, settled = grids.cross_checked(on_grid, grid, rate, sigma, uses)
    if settled:
        return bound
    rdp = rdp_epsilon(rate, sigma, uses, delta)
    return rdp if uses >= grids.MANY_USES else min(rdp, bound)


def pld_epsilon_without_grid(rate: float, sigma: float, uses: int, delta: float) -> float | None:
    """Returns ε where no grid serves: exact, or the lesser of Rényi's bound and the unsampled."""
    whole = partial(gaussian_epsilon, sigma / math.sqrt(uses), delta)
    if rate == 1.0:
        return whole()
    if grids.grid_for(rate, sigma, uses) > grids.COARSEST or delta <= grids.ERROR:
        return min(rdp_epsilon(rate, sigma, uses, delta), whole())
    return None


def pld_epsilon_quick(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns ε by privacy loss distributions on one grid, a coarser one where it suffices."""
    if (bound := pld_epsilon_without_grid(rate, sigma, uses, delta)) is not None:
        return bound
    grid = grids.grid_for(rate, sigma, uses)
    if uses < grids.MANY_USES and grids.usual_loss(rate, sigma) >= 100 * grid:
        grid *= 10
    return pld_epsilon_on_grid(rate, sigma, uses, delta, grid)


def pld_epsilon_coarse(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns ε by privacy loss distributions on a grid ten times too coarse to be trusted."""
    if (bound := pld_epsilon_without_grid(rate, sigma, uses, delta)) is not None:
        return bound
    return pld_epsilon_on_grid(rate, sigma, uses, delta, 10.0 * grids.grid_for(rate, sigma, uses))


@lru_cache(maxsize=4096)
def pld_epsilon_on_grid(rate: float, sigma: float, uses: int, delta: float, grid: float) -> float:
    """Returns ε by privacy loss distributions on one grid, without cross-check."""
    composed = subsampled_pld(rate, sigma, grid).self_compose(uses)
    return grids.epsilon_of(composed, delta)


@lru_cache(maxsize=256)
def prv_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns Opacus' upper bound by privacy random variables, eps_error 0.01, δ_error δ/1000."""
    # It bounds the remove direction only, which is the larger one; infinite where it overflows.
    points = prv_points(rate, sigma, uses, delta)
    if not points <= _MOST_POINTS:
        raise MemoryError
    if np.finfo(np.longdouble).eps * points > delta:
        raise FloatingPointError  # the points round by more than δ
    ledger = checks.require("opacus.accountants").PRVAccountant()
    ledger.history = [(sigma, rate, uses)]
    with warnings.catch_warnings():  # of overflow in the far tails, which it handles
        warnings.simplefilter("ignore")
        bound = float(ledger.get_epsilon(delta))
    return math.inf if math.isnan(bound) else bound


def prv_points(rate: float, sigma: float, uses: int, delta: float) -> float:
    """Returns about how many points the grid of `prv_epsilon` has: its time and memory.

    It reaches as far as Rényi DP bounds ε at a part of δ, of all uses and of one, at a mesh of
    `_PRV_ERROR` over the root of the number of uses (Gopi, Lee, Wutschitz 2021, remark 5.6).
    """
    error = max(delta / 1000, 1e-310)
    reach = 3 + max(
        rdp_epsilon(rate, sigma, uses, error / 4), rdp_epsilon(rate, sigma, 1, error / (8 * uses))
    )
    return 2 * reach / _PRV_ERROR * math.sqrt(uses * math.log(12 / error) / 2)


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Returns the exact δ of N(0, σ²) at ε, with multiplier σ/Δ₂ (Balle and Wang 2018, equation 6).

    With h = Δ₂/(2σ) and s = εσ/Δ₂ it is ``Φ(h − s) − e^ε·Φ(−h − s)``, and that is
    ``φ(s − h)·(R(s − h) − R(s + h))`` for Mills' ratio R = Φ(−·)/φ. Where h is so small that the
    terms cancel, the difference of R is its series ``−2(h·R′(s) + h³·R‴(s)/6)``, whose next term is
    below 1e-13 of it.
    """
    half = 0.5 / multiplier
    if multiplier < _WIDE:
        shift = epsilon * multiplier
        first, second = log_ndtr(half - shift), epsilon + log_ndtr(-half - shift)
        return float(math.exp(first) * -math.expm1(min(0.0, second - first)))
    shift = min(epsilon * multiplier, 40.0)  # φ(40) is 0 as a float
    mills = math.sqrt(math.pi / 2) * float(erfcx(shift / math.sqrt(2)))
    slope = 1 - shift * mills  # −R′(s)
    third = (2 + shift**2) * slope - shift * mills  # −R‴(s)
    density = math.exp(-((shift - half) ** 2) / 2) / math.sqrt(2 * math.pi)
    return density * 2 * (half * slope + half**3 / 6 * third)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Returns the least σ/Δ₂ for (ε, δ), from above; raises PrivacyError above 10⁹."""
    multiplier = _least(lambda x: gaussian_delta(x, epsilon) <= delta, 1e-9, 1e9)
    if multiplier == math.inf:
        raise PrivacyError(
            f"epsilon={epsilon:g} at delta={delta:g} needs a noise multiplier above 1e9: raise one."
        )
    return multiplier


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Returns the least ε of N(0, σ²) at δ, from above; 1e-12 where ε = 0 suffices."""
    # T compositions of multiplier σ/Δ₂ are one of σ/(Δ₂·√T): without sampling it is exact.
    return _least(lambda x: gaussian_delta(multiplier, x) <= delta, 1e-12, 1e19)


def _least(fits: Callable[[float], bool], smallest: float, largest: float) -> float:
    """Returns the least x that fits, from above, by bisection of log x; ∞ if none does."""
    low, high = math.log(smallest), math.log(largest)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break  # neighbouring floats
        if fits(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high) * (1 + 1e-12) if fits(math.exp(high)) else math.inf


ACCOUNTANTS: Registry[Accountant] = Registry(
    "accountant",
    {
        "pld": Accountant(pld_epsilon, "dp-accounting"),
        "prv": Accountant(prv_epsilon, "Opacus"),
        "rdp": Accountant(rdp_epsilon, "dp-accounting"),
        "rdp-opacus": Accountant(rdp_opacus_epsilon, "Opacus"),
    },
    group="fedsink.accountants",
    error=PrivacyError,
)
"""Accountants by name, the one that claims rest on first."""


@lru_cache(maxsize=8)
def subsampled_pld(rate: float, sigma: float, grid: float) -> Any:
    pld = checks.require("dp_accounting.pld.privacy_loss_distribution")
    return pld.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=grid, use_connect_dots=True
    )


@lru_cache(maxsize=256)
def rdp_curve(
    rate: float, sigma: float, orders: tuple[float, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns Rényi orders (None: dp_accounting's own) and the cost of one use at each."""
    events = checks.require("dp_accounting")
    ledger = checks.require("dp_accounting.rdp").RdpAccountant(orders)
    with quiet_absl():
        ledger.compose(events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(sigma)))
    return np.asarray(ledger._orders), np.asarray(ledger._rdp)


@lru_cache(maxsize=256)
def _opacus_curve(rate: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    rdp = checks.require("opacus.accountants.analysis.rdp")
    orders, _ = rdp_curve(rate, sigma)
    one_use = rdp.compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=orders)
    return orders, np.asarray(one_use)


@contextlib.contextmanager
def quiet_absl() -> Iterator[None]:
    """Silences notes on Rényi orders that are left out: fewer orders still give an upper bound."""

    def serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger = logging.getLogger("absl")
    logger.addFilter(serious)
    try:
        yield
    finally:
        logger.removeFilter(serious)
