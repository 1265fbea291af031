"""The server, which never sees a raw record: app, training loop, checkpoint and resume."""

from __future__ import annotations

if __name__ != "fedsink.server":
    # A second copy would have its own classes and caches.
    raise ImportError(
        "The link server/ at the repository's root is for readers: import fedsink.server instead."
    )
