"""A run's configuration: one value for each key of conf/config.yaml, read once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.models.observation import Observation
from fedsink.privacy.noise_share import NoiseShare
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.registry import GONE
from fedsink.values import Config, Options, checks, given, leaves, strictly


@dataclass(frozen=True)
class NoiseSettings:
    """Settings of the clients' noise; most are those of the `NoiseShare`."""

    backend: str  # "fast", or "secure": float-safe, from the operating system's randomness
    share: str
    tolerate_dropouts: int
    bits: int
    draw: str
    masked: bool = False
    dropouts: float = 0.0  # probability that a simulated client disappears at a trip of a sum

    def __post_init__(self) -> None:
        checks.choice("noise.backend", self.backend, "fast", "secure")
        checks.flag("noise.masked", self.masked)
        if not 0.0 <= checks.number("noise.dropouts", self.dropouts) < 1.0:
            raise ConfigError(f"noise.dropouts must be below 1, not {self.dropouts}.")

    @property
    def shared(self) -> NoiseShare:
        return NoiseShare(self.share, self.tolerate_dropouts, self.bits, self.draw, self.masked)


COMPOSED, ADDED = START_PLANS = "composed", "added"
"""Ways to make one ε of the plans of a run and of its private start: values of `start_plan`."""

_NOISE = {
    ReproducibleKey.kind: (
        "reproducible",
        "Noise and batches are computed from the published seed, so that the run can be repeated. "
        "Whoever knows the seed can subtract the noise: the guarantee describes the mechanism, and "
        "this run demonstrates it on data that needs no protection.",
    ),
    SecretKey.kind: (
        "secret",
        "Noise and batches are drawn with a key from the operating system that lies outside the "
        "run folder, readable only by its owner, and is bound to run, client and request.",
    ),
    EntropyKey.kind: (
        "secure",
        "Noise is drawn by OpenDP's float-safe samplers from the operating system's randomness; "
        "no key exists from which it could be computed again.",
    ),
    "node": (
        "node",
        "Each node's owner chooses how its noise is drawn, in a policy file that the server never "
        "sees.",
    ),
    "start": (
        "reproducible",
        "The noise of this run, or of a start that the same records trained, is computed from a "
        "published seed: whoever knows it can subtract that noise, and no record is protected.",
    ),
}


def noise_entries(kind: str) -> dict[str, str]:
    """Returns `noise` and `noise_meaning` of privacy.json, for a kind of key or "node"."""
    name, meaning = _NOISE[kind]
    return {"noise": name, "noise_meaning": meaning}


@dataclass(frozen=True)
class Paper:
    """A row of a paper that an experiment repeats, and the configuration's differences from it.

    Attributes:
        source: paper, table and row.
        values: stated by the paper, as keys of a configuration in nested tables; null: not stated.
        besides: sentences about differences that no key expresses, by name.
    """

    source: str
    values: Config
    besides: Config = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "besides"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"paper.{name} is a table, not {getattr(self, name)!r}.")

    def statement(self, config: Config) -> dict[str, Any]:
        """Returns the entry `paper` of privacy.json, for a resolved configuration."""
        differs = {}
        for key, published in leaves(self.values):
            here: Any = config
            for word in key.split("."):
                here = here.get(word) if isinstance(here, Mapping) else None
            if published is not None and here != published:
                differs[key] = {"here": _finite(here), "published": _finite(published)}
        besides = list(given(self.besides).values())
        return {"source": self.source, "differs": differs, "besides": besides}


def _finite(value: object) -> object:
    """Replaces an infinite number or NaN, which JSON lacks, by text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Configuration:
    """The configuration of a run: every key of conf/config.yaml and no other.

    Each value is checked once: values with several readers are checked here, options of a group by
    the settings class of the group, and the values of the plan (eps, sigma, rounds, delta, rate,
    clip, capacity, adjacency, accountant) by the plan.

    Attributes:
        data, noise, observation: groups that are the same for every method.
        strategy, mechanism, partition, generator, engine, recipe, view, map, report: options of
            the other groups, by name.
        clients: K.
        seed: the seed of reproducible noise; None: noise is secret.
        policy: a node policy file for every simulated client, or None.
        shuffler, shuffler_delta: "trusted" makes privacy.json state ε behind a trusted shuffler,
            at this δ.
        log: name or names of loggers, or None.
        resume: a folder; the command line reads it before there is a configuration.
        scale, scales: size of an experiment, and the values of all its sizes.
        paper: the row of a paper that an experiment repeats, or None.
        start: folder of a run with the weights before round 1: of public data, or of the same
            private ones; None: random ones.
        start_plan: how the plan of a private start counts: "composed" or "added".
        public: the run's data are public, and whoever starts it vouches for that.
        run: name and seed of a stored run.
    """

    mode: str
    data: DataSpec
    noise: NoiseSettings
    strategy: Options
    mechanism: Config
    partition: Config
    generator: Config
    engine: Config
    recipe: Config
    view: Config
    map: Config
    report: Config
    eps: float | None
    sigma: float | None
    rounds: int | None
    delta: float
    rate: float
    clip: str
    capacity: int | str | None
    adjacency: str
    accountant: str
    clients: int
    conditional: bool
    seed: int | None
    policy: str | None
    shuffler: str
    shuffler_delta: float
    observation: Observation = field(default_factory=Observation)
    log: str | tuple[str, ...] | None = None
    resume: str | None = None
    scale: str | None = None
    scales: Config | None = None
    paper: Paper | None = None
    start: str | None = None
    start_plan: str = COMPOSED
    public: bool = False
    run: Config | None = None

    def __post_init__(self) -> None:
        checks.choice("mode", self.mode, "central", "ldp")
        checks.choice("shuffler", self.shuffler, "none", "trusted")
        checks.number("shuffler_delta", self.shuffler_delta)
        checks.count("clients", self.clients)
        checks.flag("conditional", self.conditional)
        checks.choice("start_plan", self.start_plan, *START_PLANS)
        alone = self.start is None and self.policy is None
        if checks.flag("public", self.public) and not alone:
            raise ConfigError(
                "public=true says that everything that trains this generator is public: it goes "
                f"without policy= and start=, and here are policy={self.policy} and "
                f"start={self.start}."
            )
        if self.seed is not None:
            checks.count("seed", self.seed, minimum=0)
        self.observation.check(self.data.shape)
        if self.scale is not None:
            if not self.scales:
                raise ConfigError(
                    f"scale={self.scale} belongs to experiments with scales: choose one with "
                    "experiment=…, or leave it out."
                )
            checks.choice("scale", self.scale, *self.scales)

    @classmethod
    def read(cls, values: Config) -> Self:
        """Reads plain mappings and values, all interpolations resolved."""
        parts: dict[str, Any] = {
            "data": DataSpec.from_config,
            "noise": lambda group: strictly(NoiseSettings, group, "noise"),
            "observation": Observation.from_dict,
            "strategy": lambda group: Options("strategy", group),
            # A table is that of an earlier version.
            "public": lambda value: False if isinstance(value, Mapping) else value,
            "paper": lambda group: None if group is None else strictly(Paper, group, "paper"),
        }
        data = values.get("data")
        for key in ("corrupt", "relabel"):  # of an earlier version
            if isinstance(data, Mapping) and data.get(key) is not None:
                raise ConfigError(GONE[f"data.{key}"])
        return strictly(cls, {k: parts[k](v) if k in parts else v for k, v in values.items()})

    def of_paper(self, values: Config) -> dict[str, Any]:
        """Returns the entry of privacy.json about the repeated paper; {} without a paper.

        `values` are what this was read from.
        """
        return {} if self.paper is None else {"paper": self.paper.statement(values)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that the run distinguishes; a single class without labels."""
        return self.data.classes if self.conditional else ("any",)
