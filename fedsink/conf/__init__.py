"""Hydra configuration: `pkg://fedsink.conf` needs this package to exist."""

from __future__ import annotations

if __name__ != "fedsink.conf":
    # A second copy would have classes and caches of its own.
    raise ImportError(
        "The link conf/ at the repository's root is for readers: import fedsink.conf instead."
    )
