"""Give ε and two of (rate, σ, uses), get the third: always ε ≤ target, tight to 1e-3 relative.

σ is the noise multiplier, noise std / sensitivity. Without a `cost` the mechanism is the
Poisson-subsampled Gaussian under add/remove; a plan's `Cost` brings its adjacency and capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from fedsink.errors import PrivacyError
from fedsink.privacy.accounting import accountants, grids
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.values import privacy_checks as checks

_TOLERANCE = 5e-4
_SMALLEST_DELTA, _LARGEST_DELTA = 1e-12, 0.499  # wider than any useful range
_DELTA_DECADES = 0.004  # 1 % of δ
_DISCLOSED = 1e3  # ε of one use at which nothing is protected
MOST_USES = 10**9
"""Largest number of uses that is solved for."""
_MOST_EVALUATIONS = 60

Curve = Callable[[float], float]
Epsilon = Callable[[float, float, int, float, str], float]


def sigma_for(
    eps: float,
    *,
    rate: float,
    uses: int,
    delta: float,
    accountant: str = "pld",
    cost: Cost | None = None,
) -> float:
    """Returns the smallest noise multiplier σ (within 1e-3) whose ε does not exceed `eps`.

    Raises:
        PrivacyError: If one use without sampling would have an ε above 1,000 and above 10·eps with
            it: then hardly anything but δ pays, the chance that nothing is protected.
    """
    eps = _checked(eps, delta, accountant)
    rate, uses = checks.probability("rate", rate), checks.count("uses", uses)
    exact, quick = _epsilons(cost)
    if cost is not None:
        cost.check_overflow(rate, uses, delta)  # no σ fixes that

    def of_one_use(x: float) -> float:
        if cost is None:
            return accountants.gaussian_epsilon(1 / x, delta)
        return cost.epsilon_unamplified(rate, 1 / x, 1, delta)

    most = _largest_guess(max(_DISCLOSED, 10 * eps), of_one_use)
    inverse = _largest(
        eps,
        exact=lambda x: exact(rate, 1 / x, uses, delta, accountant),
        quick=lambda x: quick(rate, 1 / x, uses, delta, accountant),
        guess=min(most, _largest_guess(eps, lambda x: grids.loss_scale(rate, 1 / x, uses))),
        most=most,
    )
    if inverse >= most:
        raise PrivacyError(
            f"eps={eps:g} over {uses} uses at rate={rate:g} would do with sigma={1 / most:.3g} or "
            f"less, at which one use without sampling has ε = {of_one_use(most):,.0f}: delta="
            f"{delta:g} alone would pay for it, the chance that a unit has no protection. Lower "
            "delta below 1 over the number of records, or state sigma yourself."
        )
    return 1 / inverse


def uses_for(
    eps: float,
    *,
    rate: float,
    sigma: float,
    delta: float,
    accountant: str = "pld",
    cost: Cost | None = None,
) -> int:
    """Returns the largest number of uses (within 1e-3, at most 10⁹) whose ε does not exceed `eps`.

    Raises:
        PrivacyError: If even one use costs more than `eps`.
    """
    eps = _checked(eps, delta, accountant)
    rate, sigma = checks.probability("rate", rate), checks.positive("sigma", sigma)
    exact, quick = _epsilons(cost)
    one = exact(rate, sigma, 1, delta, accountant)
    if one > eps:
        raise PrivacyError(
            f"one use at rate={rate:g} and sigma={sigma:g} costs ε = {one:.3g}, more than "
            f"eps={eps:g}: raise sigma or eps, or lower the rate."
        )

    def scale(x: float) -> float:
        return grids.loss_scale(rate, sigma, int(max(1, x)))

    return int(
        _largest(
            eps,
            exact=lambda x: exact(rate, sigma, int(x), delta, accountant),
            quick=lambda x: quick(rate, sigma, int(x), delta, accountant),
            guess=min(MOST_USES, max(1, round(_largest_guess(eps, scale)))),
            most=MOST_USES,
            whole=True,
        )
    )


def rate_for(
    eps: float,
    *,
    sigma: float,
    uses: int,
    delta: float,
    accountant: str = "pld",
    cost: Cost | None = None,
) -> float:
    """Returns the largest sampling rate (within 1e-3, at most 1) whose ε does not exceed `eps`."""
    eps = _checked(eps, delta, accountant)
    sigma, uses = checks.positive("sigma", sigma), checks.count("uses", uses)
    exact, quick = _epsilons(cost)
    return _largest(
        eps,
        exact=lambda x: exact(x, sigma, uses, delta, accountant),
        quick=lambda x: quick(x, sigma, uses, delta, accountant),
        guess=min(1.0, _largest_guess(eps, lambda x: grids.loss_scale(x, sigma, uses))),
        most=1.0,
    )


def delta_for(
    eps: float,
    *,
    rate: float,
    sigma: float,
    uses: int,
    accountant: str = "pld",
    cost: Cost | None = None,
) -> float:
    """Returns the smallest δ (within 1 %, at least 1e-12) at which the cost does not exceed `eps`.

    Where ε comes from pairs of data sets (`Cost.by_pairs`), δ is at least 1e-11: below that their
    grids tell nothing.

    Raises:
        PrivacyError: If no δ below ½ is enough, or a value is out of range.
    """
    eps = _checked(eps, _LARGEST_DELTA, accountant)
    exact, _ = _epsilons(cost)

    def fits(exponent: float) -> bool:
        delta = 10.0**exponent
        return exact(rate, sigma, uses, delta, accountant) <= eps

    by_pairs = cost is not None and cost.by_pairs(rate)
    smallest = 2 * grids.ERROR if by_pairs else _SMALLEST_DELTA
    low, high = math.log10(smallest), math.log10(_LARGEST_DELTA)
    if not fits(high):
        raise PrivacyError(
            f"rate={rate:g} and sigma={sigma:g} cost more than eps={eps:g} over {uses} uses, "
            "whatever δ: raise eps or sigma."
        )
    if fits(low):
        return smallest
    while high - low > _DELTA_DECADES:  # ε falls as δ grows
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return 10.0**high


def _checked(eps: float, delta: float, accountant: str) -> float:
    checks.failure_probability(delta)
    accountants.check_accountant(accountant)
    return checks.positive("eps", eps)


def _epsilons(cost: Cost | None) -> tuple[Epsilon, Epsilon]:
    """Returns ε as a function of (rate, σ, uses, δ, accountant), and a quick stand-in."""
    exact = accountants.poisson_gaussian_epsilon if cost is None else cost.epsilon
    steers = cost is None or (
        cost.adjacency == ADD_REMOVE and cost.clip.sampled and not cost.before
    )
    return exact, _quick if steers else exact


def _quick(rate: float, sigma: float, uses: int, delta: float, accountant: str) -> float:
    """Returns the cost to about a percent, fast: it steers the search only."""
    if accountant.startswith("rdp"):
        return accountants.poisson_gaussian_epsilon(rate, sigma, uses, delta, accountant)
    return accountants.pld_epsilon_quick(rate, sigma, uses, delta)


def _largest(
    eps: float,
    *,
    exact: Curve,
    quick: Curve,
    guess: float,
    most: float = math.inf,
    whole: bool = False,
) -> float:
    """Returns the largest x with exact(x) ≤ eps; `quick` searches the rising cost first."""
    search = partial(_search, eps, most=most, whole=whole)
    near = search(quick, guess, tolerance=2 * _TOLERANCE)
    return search(exact, near, tolerance=_TOLERANCE)


def _search(
    eps: float, cost: Curve, start: float, *, tolerance: float, most: float, whole: bool
) -> float:
    """Returns the feasible end of a bracket of cost(x) = eps that is at most 1 + tolerance wide."""
    # Regula falsi with Illinois weights on log cost over log x; a candidate nearer to one end than
    # half the tolerance is moved so that it closes the bracket from that end.
    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    x, reach, side = start, tolerance, 0
    for _ in range(_MOST_EVALUATIONS):
        excess = math.log(min(max(cost(x), 1e-300), 1e300) / eps)
        if excess <= 0:
            if bad and side == 1:
                bad = (bad[0], bad[1] / 2)  # Illinois: an end that stays twice loses weight
            good, side = (x, excess), 1
            if x >= most:
                return x
        else:
            if good and side == -1:
                good = (good[0], good[1] / 2)
            bad, side = (x, excess), -1
        if good and bad:
            if bad[0] <= good[0] * (1 + tolerance) or (whole and bad[0] - good[0] <= 1):
                return good[0]
            x = _between(good, bad, tolerance)
        elif good:
            x = min(most, max(_root(good), good[0] * (1 + reach)))
        elif bad:
            x = min(_root(bad), bad[0] / (1 + reach))
        reach *= 2
        if whole and bad and bad[0] <= 1:
            return 1.0  # `uses_for` has paid for one use; only a stand-in takes it to cost more
        if whole:
            low = good[0] + 1 if good else 1.0
            high = bad[0] - 1 if bad else most
            x = max(low, min(high, round(x)))
    raise PrivacyError(
        f"no setting with ε = {eps:g} was found near {start:g}: give a less extreme target."
    )


def _root(point: tuple[float, float]) -> float:
    """Guess of the x with cost = eps, as if cost grew like x^1.3; at most a factor e² away."""
    x, excess = point
    return x * math.exp(-max(-2.0, min(2.0, excess / 1.3)))


def _between(good: tuple[float, float], bad: tuple[float, float], tolerance: float) -> float:
    """Returns the next point inside a bracket that is wider than the tolerance."""
    low, high = math.log(good[0]), math.log(bad[0])
    root = low + (high - low) * good[1] / (good[1] - bad[1])
    if root - low < tolerance / 2:
        return math.exp(low + 0.9 * tolerance)
    if high - root < tolerance / 2:
        return math.exp(high - 0.9 * tolerance)
    return math.exp(root)


def _largest_guess(eps: float, scale: Curve) -> float:
    """Solves scale(x) = eps by bisection of log x, from below."""
    low, high = math.log(1e-15), math.log(1e10)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if scale(math.exp(middle)) <= eps else (low, middle)
    return math.exp(low)
