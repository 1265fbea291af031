"""Privacy: keyed noise, clips, samplers, plans, accounting, and the local mechanisms.

Imports torch, numpy and scipy; the accounting libraries are loaded by the functions that use
them. Knows no network.
"""

from __future__ import annotations

from fedsink.privacy.accounting import ACCOUNTANTS, epsilon, poisson_gaussian
from fedsink.privacy.calibration import delta_for, rate_for, sigma_for, uses_for
from fedsink.privacy.clipping import BatchClip, Clip, RecordClip
from fedsink.privacy.comparison import account_table, solve_account
from fedsink.privacy.gaussian import GaussianMechanism
from fedsink.privacy.keys import Key, ReproducibleKey, SecretKey
from fedsink.privacy.laplace import LaplaceMechanism
from fedsink.privacy.matched import MatchedCost
from fedsink.privacy.noise import Stream
from fedsink.privacy.plan import PrivacyPlan
from fedsink.privacy.product import ImageMechanism, ProductMechanism
from fedsink.privacy.randomized_response import RandomizedResponse
from fedsink.privacy.sampling import ClassSchedule, JointSchedule, PoissonSampler, Schedule

__all__ = [
    "ACCOUNTANTS",
    "BatchClip",
    "ClassSchedule",
    "Clip",
    "GaussianMechanism",
    "ImageMechanism",
    "JointSchedule",
    "Key",
    "LaplaceMechanism",
    "MatchedCost",
    "PoissonSampler",
    "PrivacyPlan",
    "ProductMechanism",
    "RandomizedResponse",
    "RecordClip",
    "ReproducibleKey",
    "Schedule",
    "SecretKey",
    "Stream",
    "account_table",
    "delta_for",
    "epsilon",
    "poisson_gaussian",
    "rate_for",
    "sigma_for",
    "solve_account",
    "uses_for",
]
