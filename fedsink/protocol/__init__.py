"""What crosses the wire: the only vocabulary that clients and server share.

A request states in public terms what is asked; a reply holds privatized values and nothing else.
Names are loaded when they are first used, and Flower when a message is packed: requests can be
made and answered where it is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsink.protocol.critic import CriticRequest, Critics
    from fedsink.protocol.gradient import GradientReply, GradientRequest
    from fedsink.protocol.objective import Objective
    from fedsink.protocol.privatize import LocalPlan, PrivatizeReply, PrivatizeRequest

_MODULES = {
    "CriticRequest": "critic",
    "Critics": "critic",
    "GradientReply": "gradient",
    "GradientRequest": "gradient",
    "LocalPlan": "privatize",
    "Objective": "objective",
    "PrivatizeReply": "privatize",
    "PrivatizeRequest": "privatize",
}

__all__ = [
    "CriticRequest",
    "Critics",
    "GradientReply",
    "GradientRequest",
    "LocalPlan",
    "Objective",
    "PrivatizeReply",
    "PrivatizeRequest",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
