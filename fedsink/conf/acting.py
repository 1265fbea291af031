"""The values of a run: resolved, and without a key that was set but changes nothing.

`CONDITIONS` lists the settings under which keys act. A key that is not in it acts wherever its
group has it, or is refused by the class that reads it. Keys of `recipe` and `scales` act where a
value refers to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedsink.conf.loading import composed, file_of, opened
from fedsink.conf.typed import typed_words
from fedsink.errors import ConfigError
from fedsink.registry import GONE
from fedsink.values import Config, leaves

_REFERRED_TO = ("recipe", "scales")
"""Tables that other values refer to."""


@dataclass(frozen=True)
class Need:
    """A setting that another key needs in order to act.

    Attributes:
        key: of the setting. A configuration that lacks it allows the other key.
        holds: the test of the setting's value.
        words: the needed values, as text.
    """

    key: str
    holds: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Condition:
    """The settings under which some keys act.

    Attributes:
        keys: in full, or groups of keys.
        needs: settings that all must hold.
        under: the condition concerns configurations in which all of these settings hold.
    """

    keys: tuple[str, ...]
    needs: tuple[Need, ...]
    under: tuple[Need, ...] = ()


def _is(key: str, *values: object) -> Need:
    return Need(key, lambda value: value in values, f"{key}={' or '.join(map(_typed, values))}")


def _typed(value: object) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


_CENTRAL, _LDP, _BATCH = _is("mode", "central"), _is("mode", "ldp"), _is("clip", "batch")
_CLASSES = Need("data.classes", lambda names: len(names) > 1, "data of more than one class")
_LABELS = (_is("conditional", True), _CLASSES)
_EMBEDDED = ("digits", "glyphs", "half_circle", "shapes")
_NOT_DOWNLOADED = (*_EMBEDDED, "celeba", "femnist", "image_folder")
READ_FROM_FILES = Need(
    "data.name", lambda name: name not in _EMBEDDED, "data that is read from files"
)
_FETCHED = Need("data.name", lambda name: name not in _NOT_DOWNLOADED, "data that is downloaded")
_SIMULATED = Need("engine.name", lambda name: name != "deploy", "a simulation")
_WAITING = Need("engine.name", lambda name: name != "local", "engine=ray")
_PROTECTED = Need("eps", lambda eps: eps != math.inf, "a finite eps")
_MANY = Need("clients", lambda clients: clients > 1, "clients of 2 and more")
_SHARED = _is("noise.share", "secure_aggregation")
_ENTROPIC = _is("strategy.loss", "matched", "debiased")

CONDITIONS = (
    Condition(("noise.bits",), (_SHARED,)),
    Condition(("noise.draw", "noise.masked"), (_SHARED, _SIMULATED)),
    Condition(("noise.dropouts",), (_is("noise.masked", True), _SIMULATED)),
    Condition(("map", "mechanism.label_eps", "shuffler_delta"), (_LDP,)),
    Condition(("view", "rate", "clip"), (_CENTRAL,)),
    Condition(("mechanism.label_eps",), _LABELS),
    Condition(("shuffler_delta",), (_is("shuffler", "trusted"),)),
    Condition(("strategy.bound", "adjacency", "delta", "accountant"), (_PROTECTED,), (_CENTRAL,)),
    Condition(("data.root",), (READ_FROM_FILES,), (_SIMULATED,)),
    Condition(("data.range",), (_SIMULATED,)),
    Condition(("data.download",), (_SIMULATED, _FETCHED, _is("data.root", None))),
    Condition(("engine.timeout",), (_WAITING,)),
    Condition(("conditional",), (_CLASSES,)),
    Condition(("partition",), (_CLASSES,), (_is("partition.name", "by_label"),)),
    Condition(("partition",), (_MANY,)),
    Condition(
        ("observation.deformation.length",),
        (Need("observation.deformation.std", bool, "observation.deformation.std above 0"),),
    ),
    Condition(
        ("observation.noise.cutoff",),
        (Need("observation.noise.std", bool, "observation.noise.std above 0"),),
    ),
    Condition(("generator.one_hot_scale",), (_is("generator.per_class_first_layer", False),)),
    Condition(("strategy.unmatched",), (_is("strategy.loss", "matched"),)),
    Condition(("strategy.p",), (_is("strategy.self_term", "semi_debiased"),)),
    Condition(("strategy.history",), (_is("strategy.self_term", "history"),)),
    Condition(("strategy.label_weight",), (_BATCH, _is("strategy.schedule", "joint"), *_LABELS)),
    Condition(("strategy.schedule", "strategy.critic.mismatch"), _LABELS),
    Condition(("strategy.critic.scale",), (_is("strategy.critic.kind", "perceptron"),)),
    Condition(("strategy.m",), (_is("strategy.cost", "mixed"),), (_CENTRAL,)),
    Condition(("strategy.solver",), (_BATCH,), (_CENTRAL,)),
    Condition(("strategy.solver", "strategy.finite_batch_factor"), (_ENTROPIC,), (_LDP,)),
    Condition(
        ("strategy.tolerance", "strategy.max_iterations"),
        (_ENTROPIC, _is("strategy.solver", "converged")),
    ),
    Condition(("recipe.eps",), (_is("eps", None),)),
    Condition(("recipe.eps",), (_is("sigma", None),), (_CENTRAL,)),
    Condition(("recipe.rounds",), (_is("rounds", None),)),
    Condition(("recipe.by_eps.label_eps",), (_is("mechanism.label_eps", None), *_LABELS)),
    Condition(("recipe.by_eps.block",), (_is("map.block", None),)),
    Condition(
        ("recipe.by_eps.finite_batch_factor",),
        (_ENTROPIC, _is("strategy.finite_batch_factor", None)),
    ),
)
_READ = ("recipe.eps", "recipe.rounds", "recipe.by_eps")
"""Keys of a recipe that code reads, under CONDITIONS."""


def composed_run(overrides: list[str]) -> tuple[dict[str, Any], Path]:
    """Composes the values of a simulation, and its folder.

    Raises:
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    with opened():
        config: Any = hydra.compose("config", overrides=overrides, return_hydra_config=True)
        folder = Path(config.hydra.run.dir).expanduser().absolute()
        run = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return resolved(run, overrides), folder


def compose_config(
    overrides: Sequence[str], values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the configuration under Hydra overrides, every interpolation resolved.

    Args:
        overrides: as typed.
        values: plain values of whole keys or groups, which replace the composed ones before
            anything refers to them.

    Raises:
        ConfigError: an override sets a key that changes nothing.
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    config = composed(list(overrides))
    with open_dict(config):
        config.update(values or {})
    return acting_values(config, overrides)


def resolved(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the values of a simulation: every interpolation resolved, every path absolute.

    `run.typed` is what was typed. The paths allow resuming the run from any working directory.

    Args:
        config: as composed.
        overrides: under which it was composed.

    Raises:
        ConfigError: a key was set that changes nothing.
        OmegaConfBaseException: a value is missing, or refers to a missing one.
    """
    values = acting_values(config, overrides)
    data = values["data"]
    for group, key in (
        (data, "root"),
        (data, "clients_file"),
        (values, "policy"),
        (values, "start"),
    ):
        if group.get(key):
            group[key] = str(Path(str(group[key])).expanduser().resolve())
    values["run"] = {"typed": typed_words(overrides, values)}
    return values


def acting_values(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the values under overrides, every interpolation resolved.

    Raises:
        ConfigError: a key was set that changes nothing.
        OmegaConfBaseException: a value is missing, or refers to a missing one.
    """
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if values.get("start") == "public":
        raise ConfigError(GONE["start=public"])
    refuse_idle(config, values, overrides)
    return dict(values)


def lacking(key: str, config: Config) -> list[Need]:
    """Returns the settings that a key lacks in order to change something in a configuration.

    Args:
        key: in full, or a group.
        config: all interpolations resolved.
    """
    flat = dict(leaves(config))

    def fails(need: Need) -> bool:
        return need.key in flat and not need.holds(flat[need.key])

    return [
        need
        for condition in CONDITIONS
        if _of(key, condition.keys) and not any(map(fails, condition.under))
        for need in condition.needs
        if fails(need)
    ]


def refuse_idle(config: DictConfig, values: Config, overrides: Sequence[str]) -> None:
    """Refuses a key that was typed, or that the experiment's file sets, and that does not act.

    A key that an experiment takes from another one is not refused, nor a key of its file that a
    typed key has put out of use. Null sets nothing.

    Args:
        config: as composed.
        values: of the configuration, all interpolations resolved.
        overrides: as typed.

    Raises:
        ConfigError: the message names the key and what it needs.
    """
    typed = dict(_stated(overrides))
    for key, value in typed.items():
        if needs := lacking(key, values):
            raise ConfigError(_refusal(f"{key}={_typed(value)}", needs))
        if _of(key, _REFERRED_TO) and not (_of(key, _READ) or _is_referred_to(key, config, values)):
            raise ConfigError(
                f"{key}={_typed(value)} changes nothing here: no value that acts refers to it. "
                "Leave it out, or set the key that you mean by its own name."
            )
    if name := typed.get("experiment"):
        for key, value in _of_experiment(str(name), values):
            needs = [] if _of(key, typed) else lacking(key, values)
            if needs and not any(_of(need.key, typed) for need in needs):
                raise ConfigError(_refusal(f"{key}={_typed(value)} of experiment={name}", needs))


def _refusal(what: str, needs: Sequence[Need]) -> str:
    words = " and ".join(need.words for need in needs)
    return f"{what} changes nothing here: it acts with {words}. Leave it out, or choose that."


def _of(key: str, groups: Sequence[str] | Mapping[str, Any]) -> bool:
    """Tells whether a key is in `groups`, by itself or by a group of it."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


def _stated(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields the typed keys and their values, tables key by key."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group.partition("@")[0], override.value()
        if override.is_delete() or value is None or key.startswith("hydra"):
            continue
        plain = OmegaConf.to_container(OmegaConf.create({key: value}))
        yield from ((k, v) for k, v in leaves(dict(plain)) if v is not None)  # type: ignore[arg-type]


def _of_experiment(name: str, values: Config) -> Iterator[tuple[str, Any]]:
    """Yields the keys that an experiment's file sets, without its tables for other values.

    A value that refers to others is the composed one: an inherited key is not in the file.
    """
    stated: Any = OmegaConf.to_container(file_of("experiment", name))
    kept = {key: value for key, value in stated.items() if key not in (*_REFERRED_TO, "paper")}
    composed = dict(leaves(values))
    for key, value in leaves(kept):
        if isinstance(value, str) and value.startswith("${"):
            value = composed.get(key)
        if value is not None:
            yield key, value


def _is_referred_to(key: str, config: DictConfig, values: Config) -> bool:
    """Tells whether a value that acts would change without the value of `key`."""
    without = deepcopy(config)
    with open_dict(without):
        OmegaConf.update(without, key, "???")
    for other, value in leaves({k: v for k, v in values.items() if k not in _REFERRED_TO}):
        if lacking(other, values):
            continue
        try:
            if OmegaConf.select(without, other, throw_on_missing=True) != value:
                return True
        except OmegaConfBaseException:
            return True
    return False
