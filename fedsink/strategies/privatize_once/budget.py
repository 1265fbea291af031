"""How a total ε is spent in local mode: image and label, resolution and noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsink.data.maps import map_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_MECHANISMS, local_mechanism
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.values import checks


def local_plan(
    recipe: Mapping[str, Any],
    *,
    mechanism: Mapping[str, Any],
    chosen_map: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    eps: float | None,
    sigma: float | None,
    delta: float,
) -> tuple[LocalPlan, float]:
    """The plan for a total ε, and the recipe's finite-batch factor at that ε.

    `recipe.by_eps` lists, for a few totals, the label's share ε_l, the size k of the map's
    coefficient block, and the finite-batch factor. Between them the values are interpolated
    linearly (k rounded down), outside they stay; ε_l is at most half of ε, and k at most the
    shorter side of a picture. What the configuration
    states (`mechanism.label_eps`, `map.block`) wins.

    Args:
        recipe: measured defaults.
        mechanism: name and label_eps.
        chosen_map: the stated options of the map f.
        shape: shape of one record.
        classes: 1 means that no label leaves.
        eps: total ε; None: the recipe's, unless sigma is given.
        sigma: scale of the image noise; ε follows.
        delta: δ of a mechanism that needs one.

    Raises:
        PrivacyError, ConfigError: values out of range or contradicting each other.
    """
    name = str(mechanism["name"])
    chosen = local_mechanism(name)
    if eps is None and sigma is None:
        eps = float(recipe["eps"])
    if eps is not None:
        checks.positive("eps", eps)
    if delta and not chosen.needs_delta:
        others = [other for other in LOCAL_MECHANISMS if local_mechanism(other).needs_delta]
        raise ConfigError(
            f"mechanism={name} gives pure ε and has no δ, but delta={delta!r}: leave delta out, "
            f"or choose mechanism={' or '.join(others)}."
        )
    table = recipe["by_eps"]
    at = float(recipe["eps"]) if eps is None else float(eps)
    place = {"size": shape[0]} if len(shape) == 1 else {"shape": list(shape)}
    options = {**place, **chosen_map}
    if "block" in table and options.get("name") == recipe["map"]["name"]:
        block = int(np.interp(at, table["eps"], table["block"]))
        options.setdefault("block", min(block, *shape[1:]) if len(shape) == 3 else block)
    f = map_from_dict(options)
    label_eps = mechanism["label_eps"]
    if classes < 2:
        label_eps = None
    elif label_eps is None:
        label_eps = min(float(np.interp(at, table["eps"], table["label_eps"])), at / 2)
    factor = float(np.interp(at, table["eps"], table["finite_batch_factor"]))
    share = 0.0 if label_eps is None else float(label_eps)
    if sigma is None:
        image_eps = at - share
        if image_eps <= 0:
            raise ConfigError(
                f"mechanism.label_eps={share:g} leaves nothing of eps={at:g} for the image: "
                "lower it or raise eps."
            )
    else:
        image_eps = chosen.from_scale(f.sensitivity, sigma, delta).epsilon
        if eps is not None and not 0.99 * eps <= image_eps + share <= 1.001 * eps:
            raise ConfigError(
                f"sigma={sigma:g} costs ε = {image_eps:.4g} for the image and the label "
                f"{share:g} more, not eps={eps:g} in all: leave eps or sigma out."
            )
    plan = LocalPlan(
        mechanism=name,
        map=f,
        epsilon=image_eps,
        delta=float(delta) if chosen.needs_delta else 0.0,
        label_epsilon=label_eps,
        classes=classes,
    )
    _ = plan.image_mechanism  # refuses an impossible (ε, δ) now
    return plan, factor
