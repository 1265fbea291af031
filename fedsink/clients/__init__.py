"""The code beside private data. Nothing leaves it except through `fedsink.privacy`.

The names here are those that an answer of one's own needs; their types stand in `__init__.pyi`.
"""

from __future__ import annotations

from fedsink.registry import loaded_on_use

__getattr__ = loaded_on_use(
    __name__,
    {
        "answers.base": "Answer BatchedAnswer Neighbours Task check_classes check_view",
        "answers.central": "CentralAnswer",
        "owner.policy": "Policy",
        "records.shard": "Shard",
    },
)

if __name__ != "fedsink.clients":
    # A second copy would have its own classes and caches.
    raise ImportError(
        "The link clients/ at the repository's root is for readers: import fedsink.clients instead."
    )
