"""What the server knows: public numbers only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fedsink.configuration import Configuration
from fedsink.environment import device_named
from fedsink.reporting.loggers import logger_names
from fedsink.server.loop import LoopSettings
from fedsink.strategies.strategy_settings import StrategySettings
from fedsink.values import checks, strictly


@dataclass(frozen=True)
class ServerEngine:
    """What the server takes from `engine.*`, whatever answers it.

    Attributes:
        name: of the engine.
        timeout: seconds to wait for a round's replies; None: for ever.
        threads: torch threads of the server.
        device: where the generator lives, "cpu" or "cuda".

    Raises:
        ConfigError: a value out of range.
    """

    name: str
    timeout: float | None = None
    threads: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.timeout is not None:
            checks.positive("engine.timeout", self.timeout, also="null or ")
        checks.count("engine.threads", self.threads)
        device_named(checks.choice("engine.device", self.device, "cpu", "cuda"), "engine.device")


@dataclass(frozen=True)
class ServerSettings:
    """One run as the server sees it; small and picklable.

    Attributes:
        folder: the run folder.
        strategy: which algorithm, with which parameters.
        generator: registered name of the generator.
        generator_options: its options.
        shape: shape of one record.
        classes: names of the classes.
        server_seed: keys initial weights and latents; not secret, kept in the checkpoint.
        loop: how the run is watched and saved.
        engine: the server's device and threads, and how long it waits.
        command: what continues this run if it is stopped; None: what continues a simulation.
        log: names of the loggers that the run is told to.
    """

    folder: Path
    strategy: StrategySettings
    generator: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    server_seed: int
    generator_options: dict[str, Any] = field(default_factory=dict)
    loop: LoopSettings = field(default_factory=LoopSettings)
    engine: ServerEngine = field(default_factory=lambda: ServerEngine("local"))
    command: str | None = None
    log: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        config: Configuration,
        strategy: StrategySettings,
        engine: ServerEngine,
        folder: Path,
        server_seed: int,
        command: str | None = None,
    ) -> Self:
        """The server's half of a configuration, in a simulation and in a deployment.

        Raises:
            ConfigError: an entry of `report` is unknown or out of range, or a logger is unknown.
        """
        options = dict(config.generator)
        return cls(
            folder=folder,
            strategy=strategy,
            generator=str(options.pop("name", None)),
            generator_options=options,
            shape=config.data.shape,
            classes=config.classes,
            server_seed=server_seed,
            loop=strictly(LoopSettings, config.report, "report"),
            engine=engine,
            command=command,
            log=logger_names(config.log),
        )

    @property
    def server_key(self) -> bytes:
        """Keys the strategy's own randomness: latents of rounds and pictures. Not secret."""
        return f"server|{self.server_seed}".encode()

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a run that continues from it."""
        public = {
            "strategy": self.strategy.identity(),
            "generator": [self.generator, self.generator_options],
            "shape": self.shape,
            "classes": self.classes,
            "server_seed": self.server_seed,
        }
        plain: dict[str, Any] = json.loads(json.dumps(public, sort_keys=True, default=str))
        return plain
