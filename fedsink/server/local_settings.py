"""From a configuration of the local mode to its strategy's settings."""

from __future__ import annotations

import math

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import LOCAL_NOISE
from fedsink.server.local_budget import local_plan
from fedsink.server.values import (
    Config,
    flag,
    given,
    integer,
    noise_share,
    number,
    optimizer,
    positive,
)
from fedsink.strategies import PrivatizeOnceSettings


def local_settings(config: Config, data: DataSpec, clients: int, run: str) -> PrivatizeOnceSettings:
    """Settings of `strategy=privatize_once`.

    Raises:
        FedsinkError: a value is unknown, out of range, or belongs to the other mode.
    """
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] != "privatize_once":
        raise ConfigError(f"mode=ldp runs strategy=privatize_once, not {chosen['name']!r}.")
    if (share := noise_share(config)) != LOCAL_NOISE:
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
        optimizer=optimizer(chosen),
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
