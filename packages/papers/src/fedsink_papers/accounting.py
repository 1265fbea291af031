"""The conversion of Rényi DP to ε that published figures belong to."""

from __future__ import annotations

import math

import numpy as np

from fedsink.privacy import Accountant
from fedsink.privacy.accounting.accountants import rdp_curve

# TensorFlow Privacy's former default, to which the published ε and step counts belong.
_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256)


def rdp_classic_epsilon(rate: float, sigma: float, uses: int, delta: float) -> float:
    """ε = min over α of ρ(α) + log(1/δ)/(α − 1), the older and looser conversion.

    dp_accounting's Rényi costs at TensorFlow Privacy's former orders, with Mironov's conversion
    (2017, Prop. 3); for comparison with the DP-Sinkhorn paper's figures.
    """
    orders, one_use = rdp_curve(rate, sigma, _ORDERS)
    return float(np.min(uses * one_use - math.log(delta) / (orders - 1)))


CLASSIC = Accountant(rdp_classic_epsilon, "dp-accounting")
