"""What crosses the wire: the only vocabulary that clients and server share.

A request states in public terms what is asked; a reply holds privatized values and nothing else.
"""

from __future__ import annotations

from fedsink.protocol.gradient import GradientReply, GradientRequest, Objective
from fedsink.protocol.privatize import LocalPlan, PrivatizeReply, PrivatizeRequest

__all__ = [
    "GradientReply",
    "GradientRequest",
    "LocalPlan",
    "Objective",
    "PrivatizeReply",
    "PrivatizeRequest",
]
