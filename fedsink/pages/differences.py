"""What the configurations of runs differ in.

>>> differing([{"eps": 1.0, "rate": 0.2}, {"eps": 3.0, "rate": 0.2}])
['eps']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsink.values import PLACES, Config, leaves

_ITS_OWN = ("run", "seed", "resume", "study", "paper")
_ABSENT = object()
_REFERRED_TO = ("recipe", "scale", "scales")  # the keys that refer to these hold their values


def settings(config: Config) -> dict[str, Any]:
    """What a run does, by dotted key, without what makes it a run of its own: name, seed, places.

    Why `engine=auto` took its engine is no part of it.

    Values that were left to the recipe are the recipe's.

    Args:
        config: of a run, all interpolations resolved.
    """
    recipe = config.get("recipe") or {}
    eps, sigma, rounds = (config.get(key) for key in ("eps", "sigma", "rounds"))
    if eps is None and sigma is None:
        eps = recipe.get("eps")
    if rounds is None and (eps is None or sigma is None or config.get("mode") == "ldp"):
        rounds = recipe.get("rounds")
    stated = {key: value for key, value in config.items() if key not in (*_ITS_OWN, *_REFERRED_TO)}
    stated |= {"eps": eps, "rounds": rounds}
    left_out = (*PLACES, "engine.chosen")
    return {key: value for key, value in leaves(stated) if key not in left_out}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of some settings, keys of no group first."""
    keys = dict.fromkeys(key for values in settings for key in values)
    different = [key for key in keys if _several([values.get(key, _ABSENT) for values in settings])]
    return sorted(different, key=lambda key: "." in key)


def _several(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values[1:])
