"""What a round asks of clients, and what becomes of their replies."""

from __future__ import annotations

from fedsink.strategies.base import RoundStrategy
from fedsink.strategies.dp_sinkhorn import DPSinkhorn, DPSinkhornSettings
from fedsink.strategies.privatize_once import PrivatizeOnce, PrivatizeOnceSettings

__all__ = [
    "DPSinkhorn",
    "DPSinkhornSettings",
    "PrivatizeOnce",
    "PrivatizeOnceSettings",
    "RoundStrategy",
]

if __name__ != "fedsink.strategies":
    # A second copy would have classes and caches of its own.
    raise ImportError(
        "The link strategies/ at the repository's root is for readers: "
        "import fedsink.strategies instead."
    )
