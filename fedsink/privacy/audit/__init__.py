"""Statistics of an audit: what observed transcripts prove about ε, whatever was claimed.

Pure functions of counts and features; the drivers that run the mechanisms are in
`fedsink.simulation.audit`.
"""

from __future__ import annotations

from fedsink.privacy.audit.bounds import (
    Counts,
    clopper_pearson,
    distinguishing_epsilon,
    gaussian_epsilon,
)
from fedsink.privacy.audit.discriminant import lower_bound
from fedsink.privacy.audit.finding import Finding, compare
from fedsink.privacy.audit.one_run import guesses_for, one_run_epsilon, one_run_p_value

__all__ = [
    "Counts",
    "Finding",
    "clopper_pearson",
    "compare",
    "distinguishing_epsilon",
    "gaussian_epsilon",
    "guesses_for",
    "lower_bound",
    "one_run_epsilon",
    "one_run_p_value",
]
