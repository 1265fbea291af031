"""From settings to a finished run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.errors import FedsinkError, ModelError
from fedsink.models import Generator, build
from fedsink.reporting.loggers import Observer, loggers
from fedsink.server.folder import RunFolder
from fedsink.server.interrupt import InterruptedRunError
from fedsink.server.loop import train
from fedsink.server.recorded import RecordedRun
from fedsink.server.settings import ServerSettings
from fedsink.strategies.methods import strategy_of
from fedsink.strategies.round_strategy import RoundStrategy


def server_app(settings: ServerSettings) -> ServerApp:
    """A `ServerApp` that trains one generator into `settings.folder`, under any engine."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_server(grid, settings)

    return app


def run_server(grid: Grid, settings: ServerSettings) -> None:
    """Train one generator into `settings.folder`."""
    torch.set_num_threads(settings.engine.threads)
    strategy = build_strategy(settings)
    with observed(settings) as observer:
        train(
            grid,
            strategy,
            RunFolder(settings.folder),
            settings.loop,
            settings.identity(),
            settings.strategy.title,
            classes=settings.classes,
            timeout=settings.engine.timeout,
            command=settings.command,
            observer=observer,
        )


@contextmanager
def observed(settings: ServerSettings) -> Iterator[Observer]:
    """Whoever is told how the run goes, and in the end how it ended."""
    observer = Observer()
    if settings.log:
        run = RecordedRun(RunFolder(settings.folder))
        observer = loggers(settings.log, settings.folder, run.config, run.privacy or {})
    try:
        yield observer
    except (InterruptedRunError, KeyboardInterrupt):
        observer.end("stopped")
        raise
    except BaseException:
        observer.end("failed")
        raise
    observer.end("finished")


def build_strategy(settings: ServerSettings) -> RoundStrategy:
    """The strategy with a freshly initialised generator.

    Raises:
        ModelError: the generator cannot make records of this shape.
    """
    return strategy_of(settings.strategy, build_generator(settings), settings.server_key)


def build_generator(settings: ServerSettings) -> Generator:
    """The generator with weights that depend on `server_seed` alone.

    Raises:
        ModelError: it cannot be built with these options, or makes no records of this shape.
    """
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
    return generator.to(settings.engine.device)
