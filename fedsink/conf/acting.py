"""Under which settings a key acts; one that was set and changes nothing is refused.

One table says it, `RULES`. A key that is not in it acts wherever its group has it, or is refused by
the class that reads it. Keys of `recipe` and `scales` act where a value refers to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedsink.errors import ConfigError
from fedsink.values import Config, leaves

_REFERRED_TO = ("recipe", "scales")
"""Tables that other values refer to."""


@dataclass(frozen=True)
class Need:
    """A setting that another key needs in order to act.

    Attributes:
        key: of the setting. A configuration that lacks it says nothing against the other key.
        holds: whether a value of it will do.
        words: the same as text.
    """

    key: str
    holds: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Rule:
    """What keys need in order to act.

    Attributes:
        keys: in full, or groups of keys.
        needs: of which each must hold.
        under: the rule is about configurations in which all of these hold.
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
_EMBEDDED = ("digits", "half_circle", "shapes")
_NOT_DOWNLOADED = (*_EMBEDDED, "celeba", "femnist", "image_folder")
_FILES = Need("data.name", lambda name: name not in _EMBEDDED, "data that is read from files")
_FETCHED = Need("data.name", lambda name: name not in _NOT_DOWNLOADED, "data that is downloaded")
_SIMULATED = Need("engine.name", lambda name: name != "deploy", "a simulation")
_WAITING = Need("engine.name", lambda name: name != "local", "engine=ray")
_PROTECTED = Need("eps", lambda eps: eps != math.inf, "a finite eps")
_ENTROPIC = _is("strategy.loss", "matched", "debiased")

RULES = (
    Rule(("map", "mechanism.label_eps", "shuffler_delta"), (_LDP,)),
    Rule(("view", "rate", "clip"), (_CENTRAL,)),
    Rule(("mechanism.label_eps",), _LABELS),
    Rule(("shuffler_delta",), (_is("shuffler", "trusted"),)),
    Rule(("strategy.bound", "adjacency", "delta", "accountant"), (_PROTECTED,), (_CENTRAL,)),
    Rule(("data.root",), (_FILES,), (_SIMULATED,)),
    Rule(("data.download",), (_SIMULATED, _FETCHED, _is("data.root", None))),
    Rule(("engine.timeout",), (_WAITING,)),
    Rule(("conditional",), (_CLASSES,)),
    Rule(("partition",), (_CLASSES,), (_is("partition.name", "by_label"),)),
    Rule(
        ("observation.deformation.length",),
        (Need("observation.deformation.std", bool, "observation.deformation.std above 0"),),
    ),
    Rule(
        ("observation.noise.cutoff",),
        (Need("observation.noise.std", bool, "observation.noise.std above 0"),),
    ),
    Rule(("generator.one_hot_scale",), (_is("generator.per_class_first_layer", False),)),
    Rule(("strategy.unmatched",), (_is("strategy.loss", "matched"),)),
    Rule(("strategy.p",), (_is("strategy.self_term", "semi_debiased"),)),
    Rule(("strategy.history",), (_is("strategy.self_term", "history"),)),
    Rule(("strategy.label_weight",), (_BATCH, _is("strategy.schedule", "joint"), *_LABELS)),
    Rule(("strategy.schedule", "strategy.critic.mismatch"), _LABELS),
    Rule(("strategy.critic.scale",), (_is("strategy.critic.kind", "perceptron"),)),
    Rule(("strategy.m",), (_is("strategy.cost", "mixed"),), (_CENTRAL,)),
    Rule(("strategy.solver",), (_BATCH,), (_CENTRAL,)),
    Rule(("strategy.solver", "strategy.finite_batch_factor"), (_ENTROPIC,), (_LDP,)),
    Rule(
        ("strategy.tolerance", "strategy.max_iterations"),
        (_ENTROPIC, _is("strategy.solver", "converged")),
    ),
    Rule(("recipe.eps",), (_is("eps", None),)),
    Rule(("recipe.eps",), (_is("sigma", None),), (_CENTRAL,)),
    Rule(("recipe.rounds",), (_is("rounds", None),)),
    Rule(("recipe.by_eps.label_eps",), (_is("mechanism.label_eps", None), *_LABELS)),
    Rule(("recipe.by_eps.block",), (_is("map.block", None),)),
    Rule(
        ("recipe.by_eps.finite_batch_factor",),
        (_ENTROPIC, _is("strategy.finite_batch_factor", None)),
    ),
)
_READ = ("recipe.eps", "recipe.rounds", "recipe.by_eps")
"""Keys of a recipe that code reads, where RULES say so."""


def lacking(key: str, config: Config) -> list[Need]:
    """The settings without which a key changes nothing in a configuration.

    Args:
        key: in full, or a group.
        config: all interpolations resolved.
    """
    flat = dict(leaves(config))

    def fails(need: Need) -> bool:
        return need.key in flat and not need.holds(flat[need.key])

    return [
        need
        for rule in RULES
        if _of(key, rule.keys) and not any(map(fails, rule.under))
        for need in rule.needs
        if fails(need)
    ]


def refuse_idle(config: DictConfig, values: Config, overrides: Sequence[str]) -> None:
    """Refuse a key that was typed, or that the experiment's own file sets, and that does not act.

    What an experiment takes from one that it builds on is not refused, and neither is a key of its
    own that a typed one has put out of use. Null sets nothing.

    Args:
        config: as it was composed.
        values: the same, all interpolations resolved.
        overrides: as they were typed.

    Raises:
        ConfigError: naming the key and what it needs.
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
        for key, value in _of_experiment(str(name)):
            needs = [] if _of(key, typed) else lacking(key, values)
            if needs and not any(_of(need.key, typed) for need in needs):
                raise ConfigError(_refusal(f"{key}={_typed(value)} of experiment={name}", needs))


def _refusal(what: str, needs: Sequence[Need]) -> str:
    words = " and ".join(need.words for need in needs)
    return f"{what} changes nothing here: it acts with {words}. Leave it out, or choose that."


def _of(key: str, groups: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether a key is one of these, or in one of these groups."""
    return any(key == group or key.startswith(f"{group}.") for group in groups)


def _stated(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The typed keys and their values, tables key by key."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group.partition("@")[0], override.value()
        if override.is_delete() or value is None or key.startswith("hydra"):
            continue
        plain = OmegaConf.to_container(OmegaConf.create({key: value}))
        yield from ((k, v) for k, v in leaves(dict(plain)) if v is not None)  # type: ignore[arg-type]


def _of_experiment(name: str) -> Iterator[tuple[str, Any]]:
    """The keys of an experiment's own file; what its tables hold is not what it sets."""
    from fedsink.conf.loading import file_of  # which calls this

    own = {
        str(k): v
        for k, v in file_of("experiment", name).items()
        if k not in (*_REFERRED_TO, "paper")
    }
    yield from ((key, value) for key, value in leaves(own) if value is not None)


def _is_referred_to(key: str, config: DictConfig, values: Config) -> bool:
    """Returns True if any value that acts would be another without this one."""
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
