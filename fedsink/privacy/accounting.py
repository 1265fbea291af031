"""The privacy cost ε of a mechanism, from three accountants.

The central mechanism is a Poisson-subsampled Gaussian composed over rounds, with noise
multiplier σ = (noise std) / (sensitivity), under add/remove (zero-out) adjacency. Every figure is
an upper bound on the true ε.

- ``"pld"`` (default): privacy loss distributions, dp_accounting, pessimistic connect-the-dots.
- ``"prv"``: privacy random variables (Gopi, Lee, Wutschitz 2021), Opacus; up to minutes.
- ``"rdp"``: Rényi DP with the improved conversion (Canonne, Kamath, Steinke 2020, Prop. 12).
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from fedsink.errors import PrivacyError
from fedsink.privacy import checks

ACCOUNTANTS = ("pld", "prv", "rdp")

_GRID = 1e-4
_COARSEST_GRID = 1.0
_FINEST_GRID = 2.5e-5
_GRIDS_AGREE = 0.01
_MANY_USES = 100_000
_MEANINGLESS = 1e5  # an ε beyond this is no guarantee, and a loss distribution that wide is slow


def poisson_gaussian(rate: float, sigma: float, uses: int) -> Any:
    """The event of `uses` Poisson-subsampled Gaussians as a `dp_accounting.DpEvent`.

    Args:
        rate: Sampling probability q in (0, 1].
        sigma: Noise multiplier, noise std / sensitivity; not a standard deviation.
        uses: In how many rounds one record may take part.
    """
    rate, sigma, uses = _checked(rate, sigma, uses)
    events = checks.require("dp_accounting")
    one = events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(sigma))
    return events.SelfComposedDpEvent(one, uses)


def epsilon(event: Any, delta: float, accountant: str = "pld") -> float:
    """ε(δ) of a `dp_accounting.DpEvent` under add/remove adjacency.

    Args:
        event: For example `poisson_gaussian(...)` or a mechanism's `.event`.
        delta: δ in (0, 1).
        accountant: ``"pld"``, ``"prv"`` (Poisson-subsampled Gaussians only) or ``"rdp"``.

    Raises:
        PrivacyError: For a bad δ, an unknown accountant, or an event the accountant cannot bound.
    """
    checks.failure_probability(delta)
    _check_accountant(accountant)
    events = checks.require("dp_accounting")
    parameters = _as_poisson_gaussian(event, events)
    if parameters is not None:
        return poisson_gaussian_epsilon(*parameters, delta, accountant)
    if accountant == "prv":
        raise PrivacyError(
            "the prv accountant bounds Poisson-subsampled Gaussians only, received "
            f"{type(event).__name__}: use accountant='pld'."
        )
    if accountant == "pld":
        ledger = checks.require("dp_accounting.pld").PLDAccountant()
    else:
        ledger = checks.require("dp_accounting.rdp").RdpAccountant()
    try:
        return float(ledger.compose(event).get_epsilon(delta))
    except events.UnsupportedEventError:
        raise PrivacyError(
            f"the {accountant} accountant cannot bound {type(event).__name__}: "
            "use another accountant or a supported event."
        ) from None


def poisson_gaussian_epsilon(
    rate: float, sigma: float, uses: int, delta: float, accountant: str = "pld"
) -> float:
    """ε(δ) of `uses` Poisson-subsampled Gaussians; arguments as in `poisson_gaussian`."""
    rate, sigma, uses = _checked(rate, sigma, uses)
    delta = checks.failure_probability(delta)
    _check_accountant(accountant)
    return _EPSILON[accountant](rate, sigma, uses, delta)


@lru_cache(maxsize=4096)
def rdp_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """ε by Rényi DP: composition adds the orders' costs, so any number of uses is cheap."""
    rdp = checks.require("dp_accounting.rdp")
    orders, one_use = _rdp_curve(rate, sigma)
    with np.errstate(over="ignore", invalid="ignore"), _quiet_absl():
        bound, _ = rdp.compute_epsilon(orders, uses * one_use, delta)
    return float(bound)


@lru_cache(maxsize=4096)
def pld_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """ε by privacy loss distributions on a grid of 1e-4, cross-checked where grids matter.

    Over many compositions the answer depends on the grid: too coarse a one rounds every loss up,
    too fine a one accumulates floating-point error. From 1e5 uses, and where the grid is coarse
    against the loss of one use, it is halved until two grids agree within 1 %, and the larger
    answer counts. Where none agree the least bound is returned, from 1e5 uses the RDP bound,
    which is also returned beyond ε = 1e5, where nothing is private.
    """
    grid = _grid_for(rate, sigma, uses)
    if grid > _COARSEST_GRID:
        return rdp_epsilon(rate, sigma, uses, delta)
    bounds = [pld_epsilon_on_grid(rate, sigma, uses, delta, grid)]
    one_use = _usual_loss(rate, sigma)
    fine_enough = one_use >= 10 * grid or uses * grid <= _GRIDS_AGREE * bounds[0] / 2
    if uses < _MANY_USES and fine_enough:
        return bounds[0]
    while grid / 2 >= _FINEST_GRID and one_use >= grid / 4:
        grid /= 2
        bounds.append(pld_epsilon_on_grid(rate, sigma, uses, delta, grid))
        if abs(bounds[-2] - bounds[-1]) <= _GRIDS_AGREE * bounds[-1]:
            return max(bounds[-2:])
    rdp = rdp_epsilon(rate, sigma, uses, delta)
    return rdp if uses >= _MANY_USES else min(rdp, *bounds)


def pld_epsilon_quick(rate: float, sigma: float, uses: int, delta: float) -> float:
    """ε by privacy loss distributions on one grid, ten times coarser where that changes little."""
    grid = _grid_for(rate, sigma, uses)
    if grid > _COARSEST_GRID:
        return rdp_epsilon(rate, sigma, uses, delta)
    if uses < _MANY_USES and _usual_loss(rate, sigma) >= 100 * grid:
        grid *= 10
    return pld_epsilon_on_grid(rate, sigma, uses, delta, grid)


def pld_epsilon_on_grid(rate: float, sigma: float, uses: int, delta: float, grid: float) -> float:
    """ε by privacy loss distributions at one discretisation interval, without cross-check."""
    composed = _one_use_pld(rate, sigma, grid).self_compose(uses)
    return float(composed.get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def prv_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """ε by privacy random variables: Opacus' upper bound at eps_error 0.01, δ_error δ/1000.

    It bounds the remove direction only, which is the larger one; infinite where it overflows.
    """
    ledger = checks.require("opacus.accountants").PRVAccountant()
    ledger.history = [(sigma, rate, uses)]
    with warnings.catch_warnings():  # of overflow in the far tails, which it handles
        warnings.simplefilter("ignore")
        bound = float(ledger.get_epsilon(delta))
    return math.inf if math.isnan(bound) else bound


_EPSILON = {"pld": pld_epsilon, "prv": prv_epsilon, "rdp": rdp_epsilon}


@lru_cache(maxsize=8)
def _one_use_pld(rate: float, sigma: float, grid: float) -> Any:
    pld = checks.require("dp_accounting.pld.privacy_loss_distribution")
    return pld.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=grid, use_connect_dots=True
    )


@lru_cache(maxsize=256)
def _rdp_curve(rate: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Rényi orders and the cost of one use at each of them."""
    events = checks.require("dp_accounting")
    ledger = checks.require("dp_accounting.rdp").RdpAccountant()
    with _quiet_absl():
        ledger.compose(events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(sigma)))
    return np.asarray(ledger._orders), np.asarray(ledger._rdp)


def loss_scale(rate: float, sigma: float, uses: int) -> float:
    """A closed-form guess of the composed loss's size; steers grids and searches, proves nothing.

    The smaller of two estimates, mean + 5 std: the central limit of the subsampled mechanism, and
    the unsampled Gaussian composed over the uses that the record can expect to be sampled in.
    """
    hits = min(uses, rate * uses + 5 * math.sqrt(rate * uses) + 5)
    mu = min(_loss_std(rate, sigma) * math.sqrt(uses), math.sqrt(hits) / sigma)
    return mu * mu / 2 + 5 * mu


def _loss_std(rate: float, sigma: float) -> float:
    """Central-limit std of the privacy loss of one use, q·√(e^{1/σ²} − 1)."""
    exponent = sigma**-2
    return rate * math.sqrt(math.expm1(exponent)) if exponent < 700 else math.inf


def _usual_loss(rate: float, sigma: float) -> float:
    """Size of the loss of most uses: where σ is small most of them lose about q, a few a lot."""
    return min(rate, _loss_std(rate, sigma))


def _grid_for(rate: float, sigma: float, uses: int) -> float:
    """1e-4, or the next power of ten that keeps the distributions to some 10^7 points."""
    one_use = 0.5 * sigma**-2 + 10 / sigma
    composed = loss_scale(rate, sigma, uses)
    if composed > _MEANINGLESS:
        return math.inf
    return 10.0 ** math.ceil(math.log10(max(_GRID, one_use / 2e5, composed / 1e7)) - 1e-9)


def _as_poisson_gaussian(event: Any, events: Any) -> tuple[float, float, int] | None:
    """(rate, σ, uses) if the event is that mechanism, else None."""
    uses = 1
    if isinstance(event, events.SelfComposedDpEvent):
        event, uses = event.event, event.count
    rate = 1.0
    if isinstance(event, events.PoissonSampledDpEvent):
        event, rate = event.event, event.sampling_probability
    if isinstance(event, events.GaussianDpEvent) and event.noise_multiplier > 0 and uses >= 1:
        return rate, event.noise_multiplier, uses
    return None


def _checked(rate: float, sigma: float, uses: int) -> tuple[float, float, int]:
    return (
        checks.probability("rate", rate),
        checks.positive("sigma", sigma),
        checks.count("uses", uses),
    )


def _check_accountant(accountant: str) -> None:
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(
            f"accountant {accountant!r} is unknown: choose one of {', '.join(ACCOUNTANTS)}."
        )


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Silence notes on Rényi orders that are left out: fewer orders still give an upper bound."""
    logger = logging.getLogger("absl")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
