"""Strategies: each asks clients for something in every round and trains a generator with it.

`methods.py` finds a method by its name; `base/round_strategy.py` says what a method has to answer.
A module or a folder of a method's name holds what only that method needs. The names here are
those that a method of one's own needs; their types stand in `__init__.pyi`.
"""

from fedsink.registry import loaded_on_use

__getattr__ = loaded_on_use(
    __name__,
    {
        "base.central_statement": "SampleOfRecords",
        "base.central_strategy": "CentralRounds CentralSettings CentralStrategy central_plan",
        "base.round_strategy": "RoundStrategy StrategySettings",
    },
)

if __name__ != "fedsink.strategies":
    # A second copy would have its own classes and caches.
    raise ImportError(
        "The link strategies/ at the repository's root is for readers: "
        "import fedsink.strategies instead."
    )
