"""From a resolved configuration to the settings of server, clients and engine.

Everything a user can get wrong is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedsink.clients.settings import NodeSettings
from fedsink.data.partition import scheme_from_dict
from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError, FedsinkError
from fedsink.privacy import ClassSchedule, JointSchedule, PrivacyPlan
from fedsink.privacy.clipping import CLIPS
from fedsink.protocol import Objective
from fedsink.server.loop import LoopSettings
from fedsink.server.settings import ServerSettings
from fedsink.simulation.identity_of_run import RunIdentity
from fedsink.simulation.local_budget import local_plan
from fedsink.strategies import DPSinkhornSettings, PrivatizeOnceSettings
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import solver_named

T = TypeVar("T")
Config = Mapping[str, Any]

_TOP_LEVEL = {
    "mode", "strategy", "mechanism", "data", "partition", "generator", "engine", "recipe",
    "view", "map", "eps", "delta", "sigma", "rate", "rounds", "clients", "seed", "clip",
    "conditional", "resume", "report", "run",
}  # fmt: skip


@dataclass(frozen=True)
class EngineSettings:
    """Which engine hosts the clients, and on what.

    Attributes:
        name: "ray", "local" or "flower".
        timeout: seconds to wait for a round's replies; None: for ever.
        threads: torch threads of the server and of each client.
        device: where the generator lives, "cpu" or "cuda".
        actors: Ray cohorts; None: one per CPU core.
        num_cpus: CPU cores of the Ray instance (ray) or per client (flower).
        num_gpus: fraction of a GPU per cohort (ray) or client (flower).
    """

    name: str
    timeout: float | None = None
    threads: int = 1
    device: str = "cpu"
    actors: int | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("ray", "local", "flower"):
            raise ConfigError(f"engine.name is ray, local or flower, not {self.name!r}.")
        if self.threads < 1:
            raise ConfigError(f"engine.threads must be at least 1, not {self.threads}.")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"engine.device is cpu or cuda, not {self.device!r}.")
        if self.actors is not None and self.actors < 1:
            raise ConfigError(f"engine.actors must be null or at least 1, not {self.actors}.")
        # Ray counts whole cores of its own; stock Flower deals out fractions of them to clients.
        least = 1 if self.name == "ray" else 0
        if self.num_cpus is not None and not (self.num_cpus > 0 and self.num_cpus >= least):
            raise ConfigError(
                f"engine.num_cpus must be null or {'at least 1' if least else 'positive'}, "
                f"not {self.num_cpus}."
            )
        if not self.num_gpus >= 0:
            raise ConfigError(f"engine.num_gpus must be at least 0, not {self.num_gpus}.")
        for key, wanted in (
            ("device=cuda", self.device == "cuda"),
            ("num_gpus", self.num_gpus > 0),
        ):
            if wanted and not torch.cuda.is_available():
                raise ConfigError(f"engine.{key} is set, but torch finds no CUDA device here.")


@dataclass(frozen=True)
class RunSettings:
    """A whole simulated run, seen from above."""

    server: ServerSettings
    node: NodeSettings
    engine: EngineSettings


def configure(config: Config, folder: Path, run: RunIdentity) -> RunSettings:
    """Turn a configuration into settings.

    Args:
        config: plain mappings and values, all interpolations resolved.
        folder: the run folder.
        run: the run's name, seeds and key files.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another; the message
            names the key.
    """
    try:
        return _configured(config, folder, run)
    except FedsinkError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"A value in the configuration is missing or of the wrong type: {error}; "
            "fedsink simulate --cfg job shows them all."
        ) from error


def _configured(config: Config, folder: Path, run: RunIdentity) -> RunSettings:
    if unknown := sorted(set(config) - _TOP_LEVEL):
        raise ConfigError(f"Unknown key {unknown[0]!r} in the configuration.")
    engine = strictly(EngineSettings, config["engine"], "engine")
    data = strictly(DataSpec, config["data"], "data")
    clients = _integer(config, "clients", minimum=1)
    partition = dict(config["partition"])
    partition_seed = _integer({"seed": 0, **partition}, "seed", minimum=0, where="partition.")
    partition.pop("seed", None)
    conditional = _flag(config, "conditional")
    node = NodeSettings(
        data=data,
        partition=scheme_from_dict(partition),
        clients=clients,
        partition_seed=partition_seed,
        seed=None if config["seed"] is None else _integer(config, "seed", minimum=0),
        key_file=run.key_file,
        journal=run.journal,
        device="cuda" if engine.num_gpus > 0 else "cpu",
        threads=engine.threads,
    )
    if config["mode"] == "central":
        strategy: DPSinkhornSettings | PrivatizeOnceSettings = _central(config, data, clients)
    elif config["mode"] == "ldp":
        strategy = _local(config, data, clients)
    else:
        raise ConfigError(f"mode is central or ldp, not {config['mode']!r}.")
    options = {k: v for k, v in config["generator"].items() if k != "name"}
    server = ServerSettings(
        folder=folder,
        strategy=strategy,
        generator=str(config["generator"]["name"]),
        generator_options=options,
        shape=data.shape,
        classes=data.classes if conditional else ("any",),
        server_seed=run.server_seed,
        loop=strictly(LoopSettings, {**config["report"], "timeout": engine.timeout}, "report"),
        device=engine.device,
        threads=engine.threads,
    )
    return RunSettings(server, node, engine)


def strictly(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a settings dataclass, refusing keys that it does not have.

    Raises:
        ConfigError: an unknown key or a missing one, by its full name.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(f"Unknown key {where}.{unknown[0]}; there are {', '.join(known)}.")
    try:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except FedsinkError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The configuration of {where} is incomplete or mistyped: {error}."
        ) from error


def _central(config: Config, data: DataSpec, clients: int) -> DPSinkhornSettings:
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] != "dp_sinkhorn":
        raise ConfigError(f"mode=central runs strategy=dp_sinkhorn, not {chosen['name']!r}.")
    if mechanism["name"] != "gaussian":
        raise ConfigError(
            f"mode=central noises gradients with mechanism=gaussian, not {mechanism['name']!r}; "
            f"mechanism={mechanism['name']} belongs to mode=ldp."
        )
    if config["clip"] not in CLIPS:
        raise ConfigError(f"clip is record or batch, not {config['clip']!r}.")
    classes = len(data.classes) if config["conditional"] else 1
    if chosen["schedule"] not in ("class", "joint"):
        raise ConfigError(f"strategy.schedule is class or joint, not {chosen['schedule']!r}.")
    by_class = chosen["schedule"] == "class" and classes > 1
    eps, sigma, rounds = config["eps"], config["sigma"], config["rounds"]
    if sigma is None:
        eps = config["recipe"]["eps"] if eps is None else eps
    if rounds is None and (sigma is None or eps is None):
        rounds = config["recipe"]["rounds"]
    plan = PrivacyPlan.solve(
        rate=config["rate"],
        clip=CLIPS[config["clip"]](chosen["bound"]),
        schedule=ClassSchedule(classes) if by_class else JointSchedule(),
        delta=config["delta"],
        eps=eps,
        sigma=sigma,
        rounds=rounds,
    )
    view = {"shape": list(data.shape), **_given(config["view"])}
    view_from_dict(view)  # refuse these now rather than in a client
    solver_named(str(chosen["solver"]))
    label_weight = _number(chosen, "label_weight", minimum=0.0, where="strategy.")
    return DPSinkhornSettings(
        plan=plan,
        objective=Objective(
            lam=_positive(chosen, "lam", where="strategy."),
            classes=classes,
            m=_number(chosen, "m", minimum=0.0, where="strategy."),
            label_weight=label_weight if classes > 1 else 0.0,
            solver=str(chosen["solver"]),
        ),
        self_term=SelfTermSettings(
            chosen["self_term"],
            _integer(chosen, "history", minimum=1, where="strategy."),
            _number(chosen, "p", minimum=0.0, where="strategy."),
        ),
        view=view,
        rows=_integer(chosen, "rows", minimum=1, where="strategy."),
        optimizer=_optimizer(chosen),
        clients=clients,
        nominal_records=data.nominal_records / clients,
    )


def _local(config: Config, data: DataSpec, clients: int) -> PrivatizeOnceSettings:
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] != "privatize_once":
        raise ConfigError(f"mode=ldp runs strategy=privatize_once, not {chosen['name']!r}.")
    plan, factor = local_plan(
        config["recipe"],
        mechanism=mechanism,
        chosen_map=_given(config["map"]),
        shape=data.shape,
        classes=len(data.classes) if config["conditional"] else 1,
        eps=config["eps"],
        sigma=config["sigma"],
        delta=config["delta"],
    )
    wanted = chosen["finite_batch_factor"]
    return PrivatizeOnceSettings(
        plan=plan,
        rounds=_integer(config if config["rounds"] is not None else config["recipe"], "rounds"),
        batch=_integer(chosen, "batch", minimum=2, where="strategy."),
        optimizer=_optimizer(chosen),
        clients=clients,
        finite_batch_factor=factor
        if wanted is None
        else _number(chosen, "finite_batch_factor", minimum=0.0, where="strategy."),
        cost=chosen["cost"],
        lam=None if chosen["lam"] is None else _positive(chosen, "lam", where="strategy."),
        unmatched=_flag(chosen, "unmatched", where="strategy."),
        max_iterations=_integer(chosen, "max_iterations", minimum=1, where="strategy."),
        tolerance=_number(chosen, "tolerance", minimum=0.0, where="strategy."),
        chunk_size=_integer(chosen, "chunk_size", minimum=1, where="strategy."),
    )


def _given(options: Config) -> dict[str, Any]:
    """The options that are stated; null leaves one to its default."""
    return {key: value for key, value in options.items() if value is not None}


def _optimizer(strategy: Config) -> OptimizerSettings:
    return strictly(OptimizerSettings, strategy["optimizer"], "strategy.optimizer")


def _positive(values: Config, key: str, *, where: str = "") -> float:
    value = _number(values, key, minimum=0.0, where=where)
    if value == 0.0:
        raise ConfigError(f"{where}{key} must be a positive number, not {values[key]!r}.")
    return value


def _number(values: Config, key: str, *, minimum: float, where: str = "") -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= minimum:
        raise ConfigError(f"{where}{key} must be a number of at least {minimum:g}, not {value!r}.")
    return float(value)


def _integer(values: Config, key: str, *, minimum: int = 1, where: str = "") -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(
            f"{where}{key} must be a whole number of at least {minimum}, not {value!r}."
        )
    return value


def _flag(values: Config, key: str, *, where: str = "") -> bool:
    value = values[key]
    if not isinstance(value, bool):
        raise ConfigError(f"{where}{key} is true or false, not {value!r}.")
    return value
