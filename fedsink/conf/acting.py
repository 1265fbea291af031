"""The values of a run: resolved, and without a key that was set but changes nothing.

`CONDITIONS` is the table of keys that act only under some settings. A key that is not in it acts
wherever its group has it, or is refused by the class that reads it. Keys of `recipe` and `scales`
act where a value refers to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedsink.conf.loading import composed, file_of, opened
from fedsink.errors import ConfigError
from fedsink.registry import GONE
from fedsink.reporting.typed import typed_words
from fedsink.values import Config, leaves

_REFERRED_TO = ("recipe", "scales")
"""Tables that other values refer to."""
_READ = ("recipe.eps", "recipe.rounds", "recipe.by_eps")
"""Keys of a recipe that code reads, under CONDITIONS."""
_EMBEDDED = ("digits", "glyphs", "half_circle", "shapes")
_NEVER_FETCHED = (*_EMBEDDED, "celeba", "femnist", "image_folder", "npz")
_IN_PAPERS = ("denoised", "noisy_w1", "noisy_wgan", "unregularised")


def read_from_files(name: str) -> bool:
    """True if the data of a name are read from files, and not embedded in fedsink."""
    return name not in _EMBEDDED


_NAMED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "a simulation": ("engine.name", lambda name: name != "deploy"),
    "engine=ray": ("engine.name", lambda name: name != "local"),
    "not strategy=gs_wgan": ("strategy.name", lambda name: name != "gs_wgan"),
    "a start": ("start", lambda folder: folder is not None),
    "a finite eps": ("eps", lambda eps: eps != math.inf),
    "data of more than one class": ("data.classes", lambda names: len(names) > 1),
    "data that is read from files": ("data.name", read_from_files),
    "data that is downloaded": ("data.name", lambda name: name not in _NEVER_FETCHED),
    "strategy.self_term=history": ("strategy.self_term", lambda name: name != "semi_debiased"),
    "strategy.self_term=semi_debiased": ("strategy.self_term", lambda name: name != "history"),
    "strategy.loss=matched or debiased": ("strategy.loss", lambda name: name not in _IN_PAPERS),
}
"""Needs in words, or that an installed package's choice meets: the key and the test of its value.

Any other need is `key=value or value`, or `key above number`.
"""

_LABELS = "conditional=true and data of more than one class"
_SHARED = "noise.share=secure_aggregation"
_ENTROPIC = "strategy.loss=matched or debiased"
# fmt: off
CONDITIONS: tuple[tuple[str, str, str], ...] = (
    # keys or groups of keys            act with                    in configurations with
    ("noise.bits",                      _SHARED, ""),
    ("noise.masked",                    f"{_SHARED} and a simulation", ""),
    ("noise.draw",         "mode=central and not strategy=gs_wgan and a simulation", ""),
    ("noise.draw",                      "clients above 1", ""),
    ("noise.dropouts",                  "noise.masked=true and a simulation", ""),
    ("map mechanism.label_eps shuffler_delta", "mode=ldp", ""),
    ("view rate clip",                  "mode=central", ""),
    ("mechanism.label_eps",             _LABELS, ""),
    ("shuffler_delta",                  "shuffler=trusted", ""),
    ("strategy.bound adjacency delta accountant", "a finite eps", "mode=central"),
    ("data.root",                       "data that is read from files", "a simulation"),
    ("data.range",                      "a simulation", ""),
    ("data.download",      "a simulation and data that is downloaded and data.root=null", ""),
    ("engine.timeout",                  "engine=ray", ""),
    ("start_plan",                      "mode=central and a start", ""),
    ("conditional",                     "data of more than one class", ""),
    ("partition",                       "data of more than one class", "partition.name=by_label"),
    ("partition",                       "clients above 1", ""),
    ("observation.deformation.length",  "observation.deformation.std above 0", ""),
    ("observation.noise.cutoff",        "observation.noise.std above 0", ""),
    ("generator.one_hot_scale",         "generator.per_class_first_layer=false", ""),
    ("strategy.unmatched",              "strategy.loss=matched", ""),
    ("strategy.p",                      "strategy.self_term=semi_debiased", ""),
    ("strategy.history",                "strategy.self_term=history", ""),
    ("strategy.label_weight", f"clip=batch and strategy.schedule=joint and {_LABELS}", ""),
    ("strategy.schedule strategy.critic.mismatch", _LABELS, ""),
    ("strategy.critic.scale",           "strategy.critic.kind=perceptron", ""),
    ("strategy.m",                      "strategy.cost=mixed", "mode=central"),
    ("strategy.solver",                 "clip=batch", "mode=central"),
    ("strategy.solver strategy.finite_batch_factor", _ENTROPIC, "mode=ldp"),
    ("strategy.tolerance strategy.max_iterations",
                                        f"{_ENTROPIC} and strategy.solver=converged", ""),
    ("recipe.eps",                      "eps=null", ""),
    ("recipe.eps",                      "sigma=null", "mode=central"),
    ("recipe.rounds",                   "rounds=null", ""),
    ("recipe.by_eps.label_eps",         f"mechanism.label_eps=null and {_LABELS}", ""),
    ("recipe.by_eps.block",             "map.block=null", ""),
    ("recipe.by_eps.finite_batch_factor",
                                        f"{_ENTROPIC} and strategy.finite_batch_factor=null", ""),
)
# fmt: on
"""Keys, the needs of which all must hold for them to act, and the need under which the row counts.

A configuration that lacks the key of a need meets it.
"""


def composed_run(overrides: list[str]) -> tuple[dict[str, Any], Path]:
    """Composes the values of a simulation, and its folder."""
    with opened():
        config: Any = hydra.compose("config", overrides=overrides, return_hydra_config=True)
        folder = Path(config.hydra.run.dir).expanduser().absolute()
        run = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return resolved(run, overrides), folder


def compose_config(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the configuration under Hydra overrides, every interpolation resolved."""
    return acting_values(composed(list(overrides)), overrides)


def resolved(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the values of a simulation: `acting_values`, absolute paths, and what was typed."""
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
    """Returns the values that were composed under overrides, every interpolation resolved."""
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if values.get("start") == "public":
        raise ConfigError(GONE["start=public"])
    refuse_idle(config, values, overrides)
    return dict(values)


def lacking(key: str, config: Config) -> list[str]:
    """Returns the needs that a key, or a group, lacks in order to change something."""
    flat = dict(leaves(config))

    def holds(need: str) -> bool:
        name, test = _read(need)
        return name not in flat or test(flat[name])

    return [
        need
        for keys, needs, where in CONDITIONS
        if _of(key, keys.split()) and (not where or holds(where))
        for need in needs.split(" and ")
        if not holds(need)
    ]


def _read(need: str) -> tuple[str, Callable[[Any], bool]]:
    """Returns the key of a need, and the test of its value."""
    if need in _NAMED:
        return _NAMED[need]
    key, above, least = need.partition(" above ")
    if above:  # what is no number is refused by the class that reads it
        return key, lambda value: not isinstance(value, int | float) or value > int(least)
    key, _, values = need.partition("=")
    return key, lambda value: _typed(value) in values.split(" or ")


def _typed(value: object) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def refuse_idle(config: DictConfig, values: Config, overrides: Sequence[str]) -> None:
    """Refuses a key that was typed, or that the experiment's file sets, and that does not act."""
    # A key that an experiment takes from another one is not refused, nor a key of its file that a
    # typed key has put out of use. Null sets nothing.
    typed = dict(_typed_values(overrides))
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
            if needs and not any(_of(_read(need)[0], typed) for need in needs):
                raise ConfigError(_refusal(f"{key}={_typed(value)} of experiment={name}", needs))


def _refusal(what: str, needs: Sequence[str]) -> str:
    return (
        f"{what} changes nothing here: it acts with {' and '.join(needs)}. Leave it out, or choose "
        "that."
    )


def _of(key: str, groups: Sequence[str] | Mapping[str, Any]) -> bool:
    """Tells whether a key is in `groups`, by itself or by a group of it."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


def _typed_values(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields the typed keys and their values, tables key by key."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group.partition("@")[0], override.value()
        if override.is_delete() or value is None or key.startswith("hydra"):
            continue
        plain = OmegaConf.to_container(OmegaConf.create({key: value}))
        yield from ((k, v) for k, v in leaves(dict(plain)) if v is not None)  # type: ignore[arg-type]


def _of_experiment(name: str, values: Config) -> Iterator[tuple[str, Any]]:
    """Yields the keys that an experiment's file sets, without its tables for other values."""
    content: Any = OmegaConf.to_container(file_of("experiment", name))
    own = {key: value for key, value in content.items() if key not in (*_REFERRED_TO, "paper")}
    composed = dict(leaves(values))
    for key, value in leaves(own):
        if isinstance(value, str) and value.startswith("${"):
            value = composed.get(key)  # an inherited key is not in the file
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
