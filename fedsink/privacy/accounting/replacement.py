"""Loss distributions under replace-one: its dominating pairs, and their composition.

One labelled record is replaced by any other. Two things can happen, and ε is the worse of them. A
clip names the pair of the first in `Clip.replacement`.

*Its content changes, its label stays.* In each of the record's `uses` rounds:

- ``"opposite"``, the record clip: (1 − q)·N(0) + q·N(Δ) against (1 − q)·N(0) + q·N(−Δ). The
  contributions are a sum, so the two records share one coin and move the same total
  (dp_accounting's REPLACE_ONE).
- ``"without-replacement"``, the batch clip: the clipped gradients (without the record, with x, with
  x') lie within 2Δ of one another. By advanced joint convexity (Balle, Barthe, Gaboardi 2018,
  Theorem 2) the hockey stick at e^ε ≥ 1 is at most that of (1 − q)·N(0) + q·N(2Δ) against N(0), and
  below 1 that of the reverse: the pair of sampling *without* replacement (Zhu, Dong, Wang 2022,
  Theorem 11). Neither order of that pair has this curve by itself, so the distribution is built
  from the larger of the two.

A clip whose parts are each asked at rate q has the record clip's pair, with its bound C for Δ: g
and g', the answers of one part with the two records, are two vectors of norm ≤ C under one coin,
zero where the part is not asked. It is the cost of adding and removing too: an answer changes, none
vanishes.

*The pair of opposites dominates* for any two g, g' within Δ of 0. Let P = (1 − q)·N(0) + q·N(g), Q
the same with g', in units of the noise. For α ≥ 1 their hockey stick is E[F(U, V)] with
F = [q·U − αq·V − (1 − q)(α − 1)]₊, U = exp(⟨x, g⟩ − ‖g‖²/2), V the same of g' and x ~ N(0, I). The
logarithms of U and V are Gaussian, and E[U] = E[V] = 1: where their covariance changes by dΣ, E[F]
changes by ½·Σ dΣ_ij·E[U_i·U_j·∂²F/∂u_i∂u_j]. F is convex in q·U − αq·V, so that ∂²F/∂u² and
∂²F/∂v² are at least 0, and ∂²F/∂u∂v at most: E[F] grows with the angle of g and g' until they are
opposite, and from there with the length of either. For α < 1 exchange P and Q.

*Its label changes* under a class schedule: the old label's rounds lose a record and the new label's
rounds gain one, `uses` of each. In a joint schedule the label is part of the content.

Rényi accountants give no such bound, and Opacus' PRV has only the remove direction: both refuse.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fedsink.values import privacy_checks as checks

# Distance of one round's two means, in units of σ's sensitivity, and number of rounds per use.
DISTANCES = {"opposite": (2.0, 1), "without-replacement": (1.0, 1), "two-labels": (1.0, 2)}


def composed_pld(pair: str, rate: float, sigma: float, uses: int, grid: float) -> Any:
    """Returns the loss distribution of `uses` rounds a record of one label, with a pair."""
    pld = checks.require("dp_accounting.pld.privacy_loss_distribution")
    if pair == "opposite":
        return pld.PrivacyLossDistribution(_pmf(("REPLACE",), rate, sigma, grid).self_compose(uses))
    if pair == "without-replacement":
        larger = _pmf(("REMOVE", "ADD"), rate, sigma, grid)
        return pld.PrivacyLossDistribution(larger.self_compose(uses))
    lost, gained = (_pmf((way,), rate, sigma, grid).self_compose(uses) for way in ("REMOVE", "ADD"))
    return pld.PrivacyLossDistribution(lost.compose(gained))


@lru_cache(maxsize=8)
def _pmf(ways: tuple[str, ...], rate: float, sigma: float, grid: float) -> Any:
    """Loss distribution of one use: connects the dots of the largest of the hockey sticks."""
    mechanisms = checks.require("dp_accounting.pld.privacy_loss_mechanism")
    losses = [
        mechanisms.GaussianPrivacyLoss(
            sigma, sampling_prob=rate, adjacency_type=mechanisms.AdjacencyType[way]
        )
        for way in ways
    ]
    bounds = [loss.connect_dots_bounds() for loss in losses]
    low = math.floor(min(bound.epsilon_lower for bound in bounds) / grid)
    high = math.ceil(max(bound.epsilon_upper for bound in bounds) / grid)
    epsilons = np.arange(low, high + 1) * grid
    deltas = np.max([loss.get_delta_for_epsilon(epsilons) for loss in losses], axis=0)
    pmfs = checks.require("dp_accounting.pld.pld_pmf")
    return pmfs.create_pmf_pessimistic_connect_dots_fixed_gap(
        grid, low, high, deltas
    ).to_dense_pmf()
