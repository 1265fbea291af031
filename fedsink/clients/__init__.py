"""The code beside private data. Nothing leaves it except through `fedsink.privacy`."""

from __future__ import annotations

if __name__ != "fedsink.clients":
    # A second copy would have its own classes and caches.
    raise ImportError(
        "The link clients/ at the repository's root is for readers: import fedsink.clients instead."
    )
