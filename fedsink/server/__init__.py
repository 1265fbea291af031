"""What never sees a raw record: the app, the training loop, checkpoint and resume."""

from __future__ import annotations

if __name__ != "fedsink.server":
    # A second copy would have classes and caches of its own.
    raise ImportError(
        "The link server/ at the repository's root is for readers: import fedsink.server instead."
    )
