"""Privacy: keyed noise, clips, samplers, plans, accounting, and the local mechanisms.

Imports torch, numpy and scipy; the accounting libraries are loaded by the functions that use
them. Knows no network.
"""

from __future__ import annotations

from fedsink.privacy.accounting.accountants import ACCOUNTANTS, Accountant, poisson_gaussian
from fedsink.privacy.accounting.amplification import shuffled_epsilon, shuffling_statement
from fedsink.privacy.accounting.calibration import delta_for, rate_for, sigma_for, uses_for
from fedsink.privacy.accounting.capacity import capacity_for, overflow_probability
from fedsink.privacy.accounting.comparison import solve_account
from fedsink.privacy.accounting.cost import Cost
from fedsink.privacy.accounting.events import epsilon
from fedsink.privacy.adjacency import ADJACENCIES
from fedsink.privacy.clips import (
    BatchClip,
    Clip,
    Clipped,
    CriticClip,
    RecordClip,
    RowClip,
    attack_clip,
)
from fedsink.privacy.mechanisms import (
    LOCAL_MECHANISMS,
    Gaussian,
    Laplace,
    LocalMechanism,
    MatchedCost,
    ProductMechanism,
    RandomizedResponse,
    local_mechanism,
)
from fedsink.privacy.noise_share import LOCAL_NOISE, NoiseShare
from fedsink.privacy.plan import (
    CentralPlan,
    PrivacyPlan,
    UnprotectedPlan,
    composed_epsilon,
    plan_from_dict,
)
from fedsink.privacy.randomness.keys import EntropyKey, Key, ReproducibleKey, SecretKey
from fedsink.privacy.randomness.noise import Stream
from fedsink.privacy.randomness.secure import SecureStream
from fedsink.privacy.sampling import (
    ClassSchedule,
    JointSchedule,
    PickSchedule,
    PoissonSampler,
    Schedule,
    TurnSchedule,
)
from fedsink.privacy.steps import NoiseKey, Step

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "LOCAL_MECHANISMS",
    "LOCAL_NOISE",
    "Accountant",
    "BatchClip",
    "CentralPlan",
    "ClassSchedule",
    "Clip",
    "Clipped",
    "Cost",
    "CriticClip",
    "EntropyKey",
    "Gaussian",
    "JointSchedule",
    "Key",
    "Laplace",
    "LocalMechanism",
    "MatchedCost",
    "NoiseKey",
    "NoiseShare",
    "PickSchedule",
    "PoissonSampler",
    "PrivacyPlan",
    "ProductMechanism",
    "RandomizedResponse",
    "RecordClip",
    "ReproducibleKey",
    "RowClip",
    "Schedule",
    "SecretKey",
    "SecureStream",
    "Step",
    "Stream",
    "TurnSchedule",
    "UnprotectedPlan",
    "attack_clip",
    "capacity_for",
    "composed_epsilon",
    "delta_for",
    "epsilon",
    "local_mechanism",
    "overflow_probability",
    "plan_from_dict",
    "poisson_gaussian",
    "rate_for",
    "shuffled_epsilon",
    "shuffling_statement",
    "sigma_for",
    "solve_account",
    "uses_for",
]
