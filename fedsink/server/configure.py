"""From a resolved configuration to the server's settings: public values only.

A simulation and a deployment share this half. Everything a user can get wrong here is refused
before anything is written.
"""

from __future__ import annotations

from pathlib import Path

from fedsink.data.spec import DataSpec
from fedsink.devices import device_named
from fedsink.errors import ConfigError
from fedsink.privacy import ACCOUNTANTS
from fedsink.privacy.adjacency import ADJACENCIES
from fedsink.server.loop import LoopSettings
from fedsink.server.observation import observation_of
from fedsink.server.settings import ServerSettings
from fedsink.strategies.registry import settings_of
from fedsink.values import Config, choice, flag, integer, strictly

_TOP_LEVEL = {
    "mode", "strategy", "mechanism", "data", "partition", "generator", "engine", "recipe",
    "view", "map", "eps", "delta", "sigma", "rate", "rounds", "clients", "seed", "clip",
    "conditional", "resume", "report", "run", "accountant", "adjacency", "capacity", "noise",
    "observation", "policy", "shuffler", "shuffler_delta", "scale", "scales",
}  # fmt: skip


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
    data = DataSpec.from_config(config["data"])
    observation_of(config).check(data.shape)
    clients = integer(config, "clients", minimum=1)
    conditional = flag(config, "conditional")
    choice(config, "mode", "central", "ldp")
    choice(config, "adjacency", *ADJACENCIES)
    choice(config, "accountant", *ACCOUNTANTS)
    choice(config, "shuffler", "none", "trusted")
    engine = config["engine"]
    return ServerSettings(
        folder=folder,
        strategy=settings_of(config, data, clients, run),
        generator=str(config["generator"]["name"]),
        generator_options={k: v for k, v in config["generator"].items() if k != "name"},
        shape=data.shape,
        classes=data.classes if conditional else ("any",),
        server_seed=server_seed,
        loop=strictly(LoopSettings, {**config["report"], "timeout": engine["timeout"]}, "report"),
        device=_device(engine),
        threads=integer(engine, "threads", minimum=1, where="engine."),
        command=command,
    )


def _device(engine: Config) -> str:
    name = choice(engine, "device", "cpu", "cuda", where="engine.")
    device_named(name, "engine.device")
    return name


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
