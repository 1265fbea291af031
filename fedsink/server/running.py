"""A run at the server: its settings, and from them to a finished run folder, by any grid."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from flwr.serverapp import Grid

from fedsink.configuration import COMPOSED, Configuration
from fedsink.environment import device_named
from fedsink.errors import FedsinkError, ModelError
from fedsink.models import Generator, build
from fedsink.reporting.loggers import Observer, Observers, logger_names, loggers
from fedsink.server.folder import RecordedRun, RunFolder
from fedsink.server.loop import InterruptedRunError, LoopSettings, train
from fedsink.server.masked_grid import MaskedGrid, simulated_dropouts
from fedsink.server.starting_weights import adopted, put_in_place, statement_of
from fedsink.strategies.base.round_strategy import RoundStrategy, StrategySettings
from fedsink.strategies.methods import strategy_of
from fedsink.values import checks, read_json, strictly


@dataclass(frozen=True)
class ServerEngine:
    """Values that the server takes from `engine.*`, whatever the engine is."""

    name: str
    timeout: float | None = None  # seconds to wait for a round's replies; None: for ever
    threads: int = 1  # torch's, of the server
    device: str = "cpu"  # of the generator, "cpu" or "cuda"

    def __post_init__(self) -> None:
        if self.timeout is not None:
            checks.positive("engine.timeout", self.timeout, also="null or ")
        checks.count("engine.threads", self.threads)
        device_named(checks.choice("engine.device", self.device, "cpu", "cuda"), "engine.device")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one run at the server: only public numbers, small and picklable."""

    strategy: StrategySettings
    generator: str  # its registered name
    shape: tuple[int, ...]  # of one record
    classes: tuple[str, ...]
    server_seed: int  # keys initial weights and latents; not secret, kept in the checkpoint
    generator_options: dict[str, Any] = field(default_factory=dict)
    loop: LoopSettings = field(default_factory=LoopSettings)
    engine: ServerEngine = field(default_factory=lambda: ServerEngine("local"))
    command: str | None = None  # continues this run; None: a simulation's command
    log: tuple[str, ...] = ()  # names of the loggers
    dropouts: float = 0.0  # probability that a simulated client disappears at a trip of a sum
    source: Path | None = None  # folder of a start; None: random weights before round 1
    start_plan: str = COMPOSED  # how the plan of a private start counts

    @classmethod
    def from_config(
        cls,
        config: Configuration,
        strategy: StrategySettings,
        engine: ServerEngine,
        server_seed: int,
        command: str | None = None,
    ) -> Self:
        """Reads the server's half of a configuration, in a simulation and in a deployment."""
        options = dict(config.generator)
        return cls(
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
            dropouts=config.noise.dropouts,
            source=None if config.start is None else Path(config.start),
            start_plan=config.start_plan,
        )

    @property
    def server_key(self) -> bytes:
        """Key of the strategy's randomness: latents of rounds and pictures. Not secret."""
        return f"server|{self.server_seed}".encode()

    def identity(self) -> dict[str, Any]:
        """Returns the values that a checkpoint must share with a run that continues from it."""
        public = {
            "strategy": self.strategy.identity(),
            "generator": [self.generator, self.generator_options],
            "shape": self.shape,
            "classes": self.classes,
            "server_seed": self.server_seed,
        }
        if self.source is not None:
            public |= statement_of(self.source)
        plain: dict[str, Any] = read_json(json.dumps(public, sort_keys=True, default=str))
        return plain


def run_server(grid: Grid, settings: ServerSettings, folder: RunFolder) -> None:
    """Trains one generator into a folder, which may hold the beginning of the run."""
    torch.set_num_threads(settings.engine.threads)
    if (own := adopted(folder.path)) is not None:
        settings = replace(settings, source=own)
    strategy = build_strategy(settings)
    promise = RecordedRun(folder).privacy or {}
    if "plan" in promise.get("start", {}):
        strategy.total_epsilon = promise["epsilon"]
    if (name := settings.strategy.masked_run) is not None:
        grid = MaskedGrid(grid, name, simulated_dropouts(settings.dropouts, settings.server_key))
    observer: Observer = Observers({})
    if settings.log:
        run = RecordedRun(folder)
        observer = loggers(settings.log, folder.path, run.config, run.privacy or {})
    try:
        train(
            grid,
            strategy,
            folder,
            settings.loop,
            settings.identity(),
            settings.strategy.title,
            classes=settings.classes,
            timeout=settings.engine.timeout,
            command=settings.command,
            observer=observer,
        )
    except (InterruptedRunError, KeyboardInterrupt):
        observer.end("stopped")
        raise
    except BaseException:
        observer.end("failed")
        raise
    observer.end("finished")


def build_strategy(settings: ServerSettings) -> RoundStrategy:
    """Returns the strategy with a generator as it is before round 1."""
    return strategy_of(settings.strategy, build_generator(settings), settings.server_key)


def build_generator(settings: ServerSettings) -> Generator:
    """Returns the generator with its weights before round 1: the start's, or by `server_seed`."""
    random = torch.Generator().manual_seed(settings.server_seed % 2**63)
    try:
        generator = build(
            settings.generator,
            settings.shape,
            len(settings.classes),
            generator=random,
            **settings.generator_options,
        )
    except FedsinkError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"generator={settings.generator} cannot be built with the options "
            f"{settings.generator_options}: {error}."
        ) from error
    if settings.source is not None:
        put_in_place(generator, settings.source)
    return generator.to(settings.engine.device)
