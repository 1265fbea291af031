"""From a resolved configuration to the server's settings: public values only.

A simulation and a deployment share this half. Everything a user can get wrong here is refused
before anything is written.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.models import ObservationNoise
from fedsink.privacy import (
    ACCOUNTANTS,
    LOCAL_NOISE,
    CentralPlan,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    UnprotectedPlan,
)
from fedsink.privacy.adjacency import ADJACENCIES
from fedsink.privacy.amplification import shuffling_statement
from fedsink.privacy.capacity import capacity_for
from fedsink.privacy.clipping import CLIPS
from fedsink.protocol import Objective
from fedsink.server.local_budget import local_plan
from fedsink.server.loop import LoopSettings
from fedsink.server.settings import ServerSettings
from fedsink.server.values import (
    Config,
    choice,
    flag,
    given,
    integer,
    number,
    positive,
    strictly,
)
from fedsink.strategies import (
    DPSinkhornSettings,
    ParameterGradientSettings,
    PrivatizeOnceSettings,
)
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.transport import solver_named

_TOP_LEVEL = {
    "mode", "strategy", "mechanism", "data", "partition", "generator", "engine", "recipe",
    "view", "map", "eps", "delta", "sigma", "rate", "rounds", "clients", "seed", "clip",
    "conditional", "resume", "report", "run", "accountant", "adjacency", "capacity", "noise",
    "observation", "policy", "shuffler", "shuffler_delta", "scale", "scales",
}  # fmt: skip

_CENTRAL: dict[str, type[DPSinkhornSettings]] = {
    "dp_sinkhorn": DPSinkhornSettings,
    "parameter_gradient": ParameterGradientSettings,
}


def configure_server(
    config: Config, folder: Path, *, run: str, server_seed: int, command: str = "fedsink simulate"
) -> ServerSettings:
    """The server's half of a configuration.

    Args:
        config: plain mappings and values, all interpolations resolved.
        folder: the run folder.
        run: public name of the run.
        server_seed: keys initial weights and latents.
        command: what goes on with this run if it is stopped.

    Raises:
        FedsinkError: a value is unknown, out of range, or contradicts another; the message
            names the key.
        KeyError, TypeError, ValueError: the configuration lacks a part or is mistyped.
    """
    if unknown := sorted(set(config) - _TOP_LEVEL):
        raise ConfigError(f"Unknown key {unknown[0]!r} in the configuration.")
    _check_scale(config)
    data = strictly(DataSpec, config["data"], "data")
    _check_observation(config, data)
    clients = integer(config, "clients", minimum=1)
    conditional = flag(config, "conditional")
    mode = choice(config, "mode", "central", "ldp")
    choice(config, "adjacency", *ADJACENCIES)
    choice(config, "accountant", *ACCOUNTANTS)
    choice(config, "shuffler", "none", "trusted")
    shuffling: dict[str, Any] | None = None
    if mode == "central":
        strategy: DPSinkhornSettings | PrivatizeOnceSettings = _central(config, data, clients, run)
    else:
        strategy = _local(config, data, clients, run)
        shuffling = _shuffling(config, data, strategy)
    engine = config["engine"]
    return ServerSettings(
        folder=folder,
        strategy=strategy,
        generator=str(config["generator"]["name"]),
        generator_options={k: v for k, v in config["generator"].items() if k != "name"},
        shape=data.shape,
        classes=data.classes if conditional else ("any",),
        server_seed=server_seed,
        loop=strictly(LoopSettings, {**config["report"], "timeout": engine["timeout"]}, "report"),
        device=choice(engine, "device", "cpu", "cuda", where="engine."),
        threads=integer(engine, "threads", minimum=1, where="engine."),
        command=command,
        shuffling=shuffling,
    )


def _check_scale(config: Config) -> None:
    scale, scales = config.get("scale"), config.get("scales")
    if scale is None:
        return
    if not scales:
        raise ConfigError(
            f"scale={scale} belongs to experiments with scales: choose one with experiment=…, or "
            "leave it out."
        )
    choice(config, "scale", *scales)


def _check_observation(config: Config, data: DataSpec) -> None:
    noise = strictly(ObservationNoise, config["observation"], "observation")
    if noise.std > 0 and len(data.shape) == 1:
        raise ConfigError("observation.std is noise on images; with points set observation.std=0.")


def _central(config: Config, data: DataSpec, clients: int, run: str) -> DPSinkhornSettings:
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] not in _CENTRAL:
        raise ConfigError(
            f"mode=central runs strategy={' or '.join(_CENTRAL)}, not {chosen['name']!r}."
        )
    if mechanism["name"] != "gaussian":
        raise ConfigError(
            f"mode=central noises gradients with mechanism=gaussian, not {mechanism['name']!r}; "
            f"mechanism={mechanism['name']} belongs to mode=ldp."
        )
    if config["shuffler"] != "none":
        raise ConfigError(
            f"shuffler={config['shuffler']} belongs to mode=ldp: a shuffler amplifies reports that "
            "are private one by one, and those of mode=central are sums over a batch."
        )
    classes = len(data.classes) if config["conditional"] else 1
    plan = _plan(config, classes, math.ceil(data.nominal_records / clients))
    view = {"shape": list(data.shape), **given(config["view"])}
    view_from_dict(view)  # refuse these now rather than in a client
    solver_named(str(chosen["solver"]))
    label_weight = number(chosen, "label_weight", minimum=0.0, where="strategy.")
    return _CENTRAL[chosen["name"]](
        plan=plan,
        objective=Objective(
            lam=positive(chosen, "lam", where="strategy."),
            classes=classes,
            m=number(chosen, "m", minimum=0.0, where="strategy."),
            label_weight=label_weight if classes > 1 else 0.0,
            solver=str(chosen["solver"]),
            cost=str(chosen["cost"]),
        ),
        self_term=SelfTermSettings(
            chosen["self_term"],
            integer(chosen, "history", minimum=1, where="strategy."),
            number(chosen, "p", minimum=0.0, where="strategy."),
        ),
        view=view,
        rows=integer(chosen, "rows", minimum=1, where="strategy."),
        optimizer=_optimizer(chosen),
        clients=clients,
        nominal_records=data.nominal_records / clients,
        uses_per_message=integer(chosen, "uses_per_message", minimum=1, where="strategy."),
        accountant=str(config["accountant"]),
        run=run,
        share=_share(config),
    )


def _share(config: Config) -> NoiseShare:
    """Whose noise makes up the plan's; how it is drawn is the clients' half."""
    noise, known = config["noise"], ("backend", "share", "tolerate_dropouts")
    if unknown := sorted(set(noise) - set(known)):
        raise ConfigError(f"Unknown key noise.{unknown[0]}; there are {', '.join(known)}.")
    return NoiseShare(noise["share"], noise["tolerate_dropouts"])


def _plan(config: Config, classes: int, nominal_records: int) -> CentralPlan:
    """Two of (eps, sigma, rounds) give the third; what is left out comes from the recipe."""
    chosen = config["strategy"]
    clip = CLIPS[choice(config, "clip", *sorted(CLIPS, reverse=True))](chosen["bound"])
    schedule = choice(chosen, "schedule", "class", "joint", where="strategy.")
    by_class = schedule == "class" and classes > 1
    if config["eps"] == math.inf:
        return _unprotected(
            config, ClassSchedule(classes) if by_class else JointSchedule(), nominal_records
        )
    eps, sigma, rounds = config["eps"], config["sigma"], config["rounds"]
    if sigma is None:
        eps = config["recipe"]["eps"] if eps is None else eps
    if rounds is None and (sigma is None or eps is None):
        rounds = config["recipe"]["rounds"]

    def solve(capacity: int | None) -> PrivacyPlan:
        return PrivacyPlan.solve(
            rate=config["rate"],
            clip=clip,
            schedule=ClassSchedule(classes) if by_class else JointSchedule(),
            delta=config["delta"],
            eps=eps,
            sigma=sigma,
            rounds=rounds,
            accountant=config["accountant"],
            adjacency=config["adjacency"],
            capacity=capacity,
            nominal_records=None if capacity is None else nominal_records,
        )

    if config["capacity"] == "auto":
        free = solve(None)  # with a capacity its rounds can only become fewer
        return solve(capacity_for(free.rate, nominal_records, free.uses, free.delta))
    return solve(_capacity(config))


def _capacity(config: Config) -> int | None:
    capacity = config["capacity"]
    if capacity is None:
        return None
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ConfigError(
            f"capacity is null, auto or a whole number of at least 1, not {capacity!r}."
        )
    return capacity


def _unprotected(
    config: Config, schedule: ClassSchedule | JointSchedule, nominal_records: int
) -> UnprotectedPlan:
    """eps=inf: the same rounds with neither clip nor noise."""
    if config["sigma"] is not None:
        raise ConfigError(
            f"eps=inf adds no noise, so sigma={config['sigma']} has no meaning: leave one out."
        )
    if config["engine"]["name"] == "deploy":
        raise ConfigError(
            "eps=inf protects nothing, and real nodes always refuse it: it is for fedsink simulate."
        )
    rounds = config["recipe"]["rounds"] if config["rounds"] is None else config["rounds"]
    plan = UnprotectedPlan(config["rate"], rounds, str(config["clip"]), schedule)
    most = None if config["capacity"] == "auto" else _capacity(config)
    if config["capacity"] == "auto":
        most = capacity_for(plan.rate, nominal_records, plan.uses, config["delta"])
    limit = None if most is None else nominal_records
    return replace(plan, capacity=most, nominal_records=limit)


def _local(config: Config, data: DataSpec, clients: int, run: str) -> PrivatizeOnceSettings:
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] != "privatize_once":
        raise ConfigError(f"mode=ldp runs strategy=privatize_once, not {chosen['name']!r}.")
    if (share := _share(config)) != LOCAL_NOISE:
        raise ConfigError(
            f"noise.share={share.name} belongs to mode=central: in mode=ldp records are used one "
            "by one, and nothing adds them up."
        )
    for key, value, why in (
        ("adjacency", "replace-one", "a record is protected against any other value of it"),
        ("accountant", "pld", "image and label are summed, and nothing is accounted"),
        ("capacity", None, "there are no batches"),
    ):
        if config[key] != value:
            raise ConfigError(f"{key}={config[key]} belongs to mode=central: in mode=ldp {why}.")
    if config["eps"] == math.inf:
        raise ConfigError(
            "eps=inf belongs to mode=central: in mode=ldp the loss is matched to the noise, and "
            "without noise there is none."
        )
    plan, factor = local_plan(
        config["recipe"],
        mechanism=mechanism,
        chosen_map=given(config["map"]),
        shape=data.shape,
        classes=len(data.classes) if config["conditional"] else 1,
        eps=config["eps"],
        sigma=config["sigma"],
        delta=config["delta"],
    )
    wanted = chosen["finite_batch_factor"]
    return PrivatizeOnceSettings(
        plan=plan,
        rounds=integer(config if config["rounds"] is not None else config["recipe"], "rounds"),
        batch=integer(chosen, "batch", minimum=2, where="strategy."),
        optimizer=_optimizer(chosen),
        clients=clients,
        finite_batch_factor=factor
        if wanted is None
        else number(chosen, "finite_batch_factor", minimum=0.0, where="strategy."),
        loss=str(chosen["loss"]),
        cost=chosen["cost"],
        lam=None if chosen["lam"] is None else positive(chosen, "lam", where="strategy."),
        unmatched=flag(chosen, "unmatched", where="strategy."),
        max_iterations=integer(chosen, "max_iterations", minimum=1, where="strategy."),
        tolerance=number(chosen, "tolerance", minimum=0.0, where="strategy."),
        chunk_size=integer(chosen, "chunk_size", minimum=1, where="strategy."),
        run=run,
    )


def _shuffling(
    config: Config, data: DataSpec, strategy: PrivatizeOnceSettings
) -> dict[str, Any] | None:
    if config["shuffler"] == "none":
        return None
    delta = number(config, "shuffler_delta", minimum=0.0)
    plan = strategy.plan
    return shuffling_statement(plan.total_epsilon, plan.delta, data.nominal_records, delta)


def _optimizer(strategy: Config) -> OptimizerSettings:
    return strictly(OptimizerSettings, strategy["optimizer"], "strategy.optimizer")
