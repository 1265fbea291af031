"""Strategies: each asks clients for something in every round and trains a generator with it.

`methods.py` finds a method by its name; `round_strategy.py` says what a method has to answer. A
module or a folder of a method's name holds what only that method needs.
"""

if __name__ != "fedsink.strategies":
    # A second copy would have its own classes and caches.
    raise ImportError(
        "The link strategies/ at the repository's root is for readers: "
        "import fedsink.strategies instead."
    )
