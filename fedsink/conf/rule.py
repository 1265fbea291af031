"""The rule of `fedsink.strategies.rule` at the public sizes that a configuration states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.strategies.rule import Sizes
from fedsink.values import checks


def value(name: str, config: Mapping[str, Any]) -> Any:
    """Returns a setting such as `record.rate`; None while the data are unstated."""
    sizes = sizes_of(config)
    if sizes is None:
        return None
    setting: Any = sizes.central() if config["mode"] == "central" else sizes.local()
    for word in name.split("."):
        setting = setting[word]
    return setting


def sizes_of(config: Mapping[str, Any]) -> Sizes | None:
    """Reads the sizes in a configuration; None where it leaves a public fact of the data out."""
    data = config["data"]
    facts = [data.get(key) for key in ("shape", "classes", "nominal_records")]
    if None in facts:
        return None
    plain: list[Any] = [OmegaConf.to_container(f) if OmegaConf.is_config(f) else f for f in facts]
    shape, classes, records = plain
    spec = DataSpec("data", shape, classes, records)
    if len(spec.shape) != 3:
        raise ConfigError(
            f"The rule is for pictures, and data.shape={list(spec.shape)} is a point's: choose "
            "data with (channels, height, width)."
        )
    checks.count("clients", config["clients"])
    checks.flag("conditional", config["conditional"])
    checks.within("delta", config["delta"], "[0, 1)")
    recipe, eps = config["recipe"], config["eps"]
    usual = not isinstance(eps, int | float) or not eps > 0  # left out, or refused by the plan
    if usual or (math.isinf(eps) and config["mode"] == "ldp"):
        eps = recipe["eps"]
    return Sizes(
        shape=spec.shape,
        classes=len(spec.classes) if config["conditional"] else 1,
        records=spec.nominal_records,
        clients=config["clients"],
        eps=float(eps),
        delta=config["delta"],
        mechanism=config["mechanism"]["name"],
    )
