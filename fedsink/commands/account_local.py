"""The local mechanisms' half of `fedsink account`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsink.commands.keys import real, whole
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_MECHANISMS,
    LocalMechanism,
    RandomizedResponse,
    local_mechanism,
)
from fedsink.privacy.accounting.amplification import shuffled_epsilon
from fedsink.privacy.adjacency import describe

HELP = """Local mode: the scale of a mechanism for a total ε, or the ε of a scale. The sensitivity
is the diameter of the set of values: L1 for laplace, L2 for gaussian; 2r for a ball.

  delta=…         δ of the Gaussian (default 1e-4)
  calibration=…   analytic (default) or equation5, the paper's closed form
  label_eps=…     ε of randomized response on the label, part of eps
  classes=C       number of labels
  shuffle=N       also ε after a trusted shuffler of N reports, at shuffle_delta=… (default 1e-6)

  fedsink account mechanism=gaussian sensitivity=40 eps=25 delta=1e-4
  fedsink account mechanism=laplace sensitivity=2 eps=35 label_eps=5 classes=10
  fedsink account mechanism=laplace sensitivity=2 eps=5 shuffle=400000"""

KEYS: dict[str, Callable[[str], Any]] = {
    "mechanism": str, "sensitivity": real, "eps": real, "sigma": real, "delta": real,
    "calibration": str, "label_eps": real, "classes": whole(2), "shuffle": whole(1),
    "shuffle_delta": real,
}  # fmt: skip

_DELTA, _SHUFFLE_DELTA = 1e-4, 1e-6


def local_rows(keys: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a local mechanism costs, a quantity a row.

    Raises:
        ConfigError: keys are missing, contradict each other, or belong to the other mechanism.
        PrivacyError: a value is out of range, or shuffling amplifies nothing there.
    """
    label = _label(keys)
    image = _image(keys, 0.0 if label is None else label.epsilon)
    total = image.epsilon + (0.0 if label is None else label.epsilon)
    values = {"eps": f"{total:,.6g}", "delta": f"{image.delta:g}"}
    if label is not None:
        values |= {"eps of the image": f"{image.epsilon:,.6g}", "eps of the label": _g(label)}
    values |= {
        "sigma": f"{image.scale:,.6g}",
        "sensitivity": f"{image.sensitivity:,.6g} ({image.norm.upper()})",
        "adjacency": describe(image.adjacency),
    }
    if "shuffle" in keys:
        delta = keys.get("shuffle_delta", _SHUFFLE_DELTA)
        shuffled = shuffled_epsilon(total, keys["shuffle"], delta, delta0=image.delta)
        values[f"eps after a trusted shuffler of {keys['shuffle']:,} reports, delta={delta:g}"] = (
            f"{shuffled:,.4g}"
        )
    return [{"quantity": name, "value": value} for name, value in values.items()]


def _g(label: RandomizedResponse) -> str:
    return f"{label.epsilon:,.6g} (kept with probability {label.keep_probability:.4f})"


def _label(keys: Mapping[str, Any]) -> RandomizedResponse | None:
    if ("label_eps" in keys) != ("classes" in keys):
        raise ConfigError("label_eps and classes go together: give both or neither.")
    return RandomizedResponse(keys["classes"], keys["label_eps"]) if "classes" in keys else None


def _image(keys: Mapping[str, Any], label_eps: float) -> LocalMechanism:
    name = keys["mechanism"]
    if name not in LOCAL_MECHANISMS:
        raise ConfigError(f"mechanism={name}: choose {' or '.join(LOCAL_MECHANISMS)}.")
    mechanism = local_mechanism(name)
    if "sensitivity" not in keys:
        raise ConfigError(
            "sensitivity is missing: the diameter of the set of values, 2r for a ball."
        )
    if ("eps" in keys) == ("sigma" in keys):
        raise ConfigError("Give eps (and get sigma) or sigma (and get eps), one of the two.")
    if "shuffle_delta" in keys and "shuffle" not in keys:
        raise ConfigError("shuffle_delta needs shuffle=N, the number of shuffled reports.")
    for key in sorted({"calibration", "delta"} & set(keys)):
        if not _has(mechanism, key):
            pure = "" if mechanism.needs_delta else "gives pure ε and "
            others = [other for other in LOCAL_MECHANISMS if _has(local_mechanism(other), key)]
            raise ConfigError(
                f"mechanism={name} {pure}has no {key}: leave it out, or choose "
                f"mechanism={' or '.join(others)}."
            )
    if "calibration" in keys and "sigma" in keys:
        raise ConfigError("calibration finds sigma from eps: leave it out where sigma is given.")
    sensitivity, delta = keys["sensitivity"], keys.get("delta", _DELTA)
    if "sigma" in keys:
        return mechanism.from_scale(sensitivity, keys["sigma"], delta)
    eps = keys["eps"] - label_eps
    if label_eps and eps <= 0:
        raise ConfigError(
            f"label_eps={label_eps:g} leaves nothing of eps={keys['eps']:g} for the image: lower "
            "it or raise eps."
        )
    return mechanism.from_epsilon(sensitivity, eps, delta, keys.get("calibration"))


def _has(mechanism: type[LocalMechanism], key: str) -> bool:
    """Whether the mechanism's guarantee or scale depends on this key."""
    return mechanism.needs_delta if key == "delta" else bool(mechanism.calibrations)
