"""σ under sampling by allocation, against Poisson sampling, at equal ε.

Allocation deals every record to exactly one of each t = 1/q rounds in a row (k of T rounds in all,
k = qT); Poisson sampling takes it into every round with probability q. Both have one dominating
pair for a block of t rounds (Chua et al. 2024, balls and bins; Mironov et al. 2019): with
u_i = exp((x_i − ½)/σ²), x_i ~ N(0, σ²) independent, the density of "with the record" over
"without" is

    allocation  S = (1/t) Σ_{i≤t} u_i,        Poisson  S = Π_{i≤t} (1 − q + q·u_i).

The law of log S is put on a grid, blocks are composed by a Fourier transform, and ε is the larger
one of both directions at δ. `python benchmarks/random_allocation.py` prints a line for each recipe:
σ by fedsink's accountant, by this one under Poisson sampling, and under allocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip

DELTA = 1e-5
USUAL = (0.2, 1.0, 3.0, 10.0)
SETTINGS: Sequence[tuple[str, float, int, Sequence[float]]] = (
    ("one curator, all classes at once", 0.1, 4000, USUAL),
    ("ten clients, one class a round", 0.2, 400, USUAL),
    ("a thousand clients, 1,000 rounds", 0.5, 100, USUAL),
    ("digits", 0.2, 300, USUAL),
    ("batch clip", 0.025, 400, (0.2, 0.5, 1.0, 3.0)),  # the grid of S is too coarse for σ < 0.9
)
_SIZE = 1 << 20  # places of the grid
_ROUNDS = 40.0  # standard deviations that the grid holds

Law = tuple[np.ndarray, float]
"""Probabilities of log S "without" the record on a grid, and the grid's step; place 0 is 0."""


def allocation(sigma: float, t: int, step: float) -> Law:
    """The law of log S for one block under allocation.

    S is a mean of t values: their sum is made on a grid of its own, by a Fourier transform.
    """
    low, high = math.exp(-9.0 / sigma - 0.5 / sigma**2), math.exp(9.0 / sigma)
    places = 1 << 16
    width = (high - low) / t / places
    edges = low / t + width * (np.arange(places + 1) - 0.5)
    cdf = stats.norm.cdf(np.log(np.maximum(edges * t, 1e-300)) * sigma + 0.5 / sigma)
    one = np.diff(cdf)
    one /= one.sum()
    size = 1 << math.ceil(math.log2(t * places))
    summed = np.fft.irfft(np.fft.rfft(one, size) ** t, size)
    values = low + width * np.arange(size)
    return _on_grid(np.log(values), np.maximum(summed, 0.0), step), step


def poisson(sigma: float, q: float, step: float) -> Law:
    """The law of log S for one round under Poisson sampling."""
    x = np.linspace(-12.0, 12.0, 200_001)
    mass = stats.norm.pdf(x)
    values = np.log1p(q * np.expm1(x / sigma - 0.5 / sigma**2))
    return _on_grid(values, mass / mass.sum(), step), step


def epsilon(law: Law, blocks: int, delta: float) -> float:
    """ε of so many blocks, the larger one of both directions."""
    pmf, step = law
    losses = np.where(np.arange(_SIZE) < _SIZE // 2, np.arange(_SIZE), np.arange(_SIZE) - _SIZE)
    losses = losses * step
    tilted = pmf * np.exp(np.clip(losses, -600.0, 600.0))  # the law "with": its density is S

    def composed(one: np.ndarray) -> np.ndarray:
        return np.maximum(np.fft.irfft(np.fft.rfft(one / one.sum()) ** blocks, _SIZE), 0.0)

    return max(
        _epsilon_of(losses, composed(tilted), delta), _epsilon_of(-losses, composed(pmf), delta)
    )


def sigma_for(eps: float, found: Callable[[float], float]) -> float:
    """σ at which an accountant finds this ε."""
    low = 0.3
    while found(low * 2.0) > eps:
        low *= 2.0
    return float(brentq(lambda s: math.log(found(s) / eps), low, 2.0 * low, xtol=2e-4 * low))


def _on_grid(values: np.ndarray, mass: np.ndarray, step: float) -> np.ndarray:
    """Mass at places of the grid, split between both neighbours so that means are kept."""
    exact = values / step
    below = np.floor(exact).astype(np.int64)
    part = exact - below
    pmf = np.bincount(below % _SIZE, mass * (1.0 - part), _SIZE)
    return np.asarray(pmf + np.bincount((below + 1) % _SIZE, mass * part, _SIZE))


def _epsilon_of(losses: np.ndarray, mass: np.ndarray, delta: float) -> float:
    kept = mass > 0.0
    losses, mass = losses[kept], mass[kept]

    def excess(eps: float) -> float:
        above = losses > eps
        return float((mass[above] * -np.expm1(eps - losses[above])).sum()) - delta

    if excess(0.0) <= 0.0:
        return 1e-9
    return float(brentq(excess, 0.0, losses.max(), xtol=1e-9))


def _step(q: float, sigma: float, uses: float) -> float:
    """A grid that holds `_ROUNDS` standard deviations of the composed loss."""
    spread = q * math.sqrt(uses * math.expm1(1.0 / sigma**2))
    return max(2.0 * _ROUNDS * spread, 8.0 / sigma + 0.1) / _SIZE


def main() -> None:
    print("| recipe | q | rounds | ε | σ, fedsink | Poisson | allocation | saved |")
    print("|---|---|---|---|---|---|---|---|")
    for name, q, rounds, epsilons in SETTINGS:
        t = round(1.0 / q)
        for eps in epsilons:
            plan = PrivacyPlan.solve(
                rate=q, clip=RecordClip(1.0), schedule=JointSchedule(), delta=DELTA, eps=eps,
                sigma=None, rounds=rounds, accountant="pld", adjacency="add-remove",
                capacity=None, nominal_records=None,
            )  # fmt: skip

            def by_poisson(s: float, q: float = q, rounds: int = rounds) -> float:
                return epsilon(poisson(s, q, _step(q, s, rounds)), rounds, DELTA)

            def by_allocation(s: float, q: float = q, t: int = t, rounds: int = rounds) -> float:
                return epsilon(allocation(s, t, _step(q, s, rounds)), rounds // t, DELTA)

            sampled, dealt = sigma_for(eps, by_poisson), sigma_for(eps, by_allocation)
            ours = plan.noise_multiplier
            saved = f"{100 * (1 - dealt / sampled):.1f} %"
            cells = [name, f"{q:g}", str(rounds), f"{eps:g}", f"{ours:.3f}", f"{sampled:.3f}"]
            print("|", " | ".join([*cells, f"{dealt:.3f}", saved]), "|", flush=True)


if __name__ == "__main__":
    main()
