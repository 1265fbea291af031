"""Spends a total ε of the ldp mode: on image and label, on resolution and noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsink.data.maps import Map, map_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_MECHANISMS, LocalMechanism, local_mechanism
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
    """Returns the plan for a total ε, and the recipe's finite-batch factor at that ε.

    `recipe.by_eps` lists, for a few totals, the label's share ε_l, the size k of the map's
    coefficient block, and the finite-batch factor. Between them the values are interpolated
    linearly (k rounded down), outside they stay; ε_l is at most half of ε, and k at most the
    shorter side of a picture. A value that the configuration states (`mechanism.label_eps`,
    `map.block`) replaces that of the table.

    Args:
        recipe: measured defaults.
        mechanism: name and label_eps.
        chosen_map: the stated options of the map f.
        shape: of one record.
        classes: 1 means that clients send no labels.
        eps: total ε; None: the recipe's, unless sigma is given.
        sigma: scale of the image noise; ε follows.
        delta: δ of a mechanism that needs one.

    Raises:
        PrivacyError, ConfigError: values out of range or contradicting each other.
    """
    name = str(mechanism["name"])
    local = local_mechanism(name)
    if eps is None and sigma is None:
        eps = float(recipe["eps"])
    _check(eps, delta, name, local)
    at, table = float(recipe["eps"] if eps is None else eps), recipe["by_eps"]
    f = _map(recipe, chosen_map, shape, at)
    label_eps = None
    if classes > 1:
        label_eps = mechanism["label_eps"]
        if label_eps is None:
            label_eps = min(_interpolated(table, "label_eps", at), at / 2)
    plan = LocalPlan(
        mechanism=name,
        map=f,
        epsilon=_image_eps(local, f, float(label_eps or 0.0), at, eps, sigma, delta),
        delta=float(delta) if local.needs_delta else 0.0,
        label_epsilon=label_eps,
        classes=classes,
    )
    return plan, _interpolated(table, "finite_batch_factor", at)


def _check(eps: float | None, delta: float, name: str, local: type[LocalMechanism]) -> None:
    """Refuses a total that is no positive number, and a δ that the mechanism does not have."""
    if eps is not None:
        checks.positive("eps", eps)
    if delta and not local.needs_delta:
        others = [other for other in LOCAL_MECHANISMS if local_mechanism(other).needs_delta]
        raise ConfigError(
            f"mechanism={name} gives pure ε and has no δ, but delta={delta!r}: leave delta out, "
            f"or choose mechanism={' or '.join(others)}."
        )


def _map(
    recipe: Mapping[str, Any], chosen: Mapping[str, Any], shape: tuple[int, ...], at: float
) -> Map:
    """Returns the map f; the recipe's own map has the resolution of its table at this ε."""
    place = {"size": shape[0]} if len(shape) == 1 else {"shape": list(shape)}
    options = {**place, **chosen}
    if "block" in recipe["by_eps"] and options.get("name") == recipe["map"]["name"]:
        block = int(_interpolated(recipe["by_eps"], "block", at))
        options.setdefault("block", min(block, *shape[1:]) if len(shape) == 3 else block)
    return map_from_dict(options)


def _image_eps(
    local: type[LocalMechanism],
    f: Map,
    label_eps: float,
    at: float,
    eps: float | None,
    sigma: float | None,
    delta: float,
) -> float:
    """Returns ε of the image: what the label leaves of the total, or what sigma costs."""
    if sigma is None:
        image_eps = at - label_eps
        if image_eps <= 0:
            raise ConfigError(
                f"mechanism.label_eps={label_eps:g} leaves nothing of eps={at:g} for the image: "
                "lower it or raise eps."
            )
        return image_eps
    image_eps = local.from_scale(f.sensitivity, sigma, delta).epsilon
    if eps is not None and not 0.99 * eps <= image_eps + label_eps <= 1.001 * eps:
        raise ConfigError(
            f"sigma={sigma:g} costs ε = {image_eps:.4g} for the image and the label "
            f"{label_eps:g} more, not eps={eps:g} in all: leave eps or sigma out."
        )
    return image_eps


def _interpolated(table: Mapping[str, Any], name: str, at: float) -> float:
    return float(np.interp(at, table["eps"], table[name]))
