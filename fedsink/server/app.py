"""The Flower `ServerApp`: the same under every engine and in a deployment."""

from __future__ import annotations

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.models import Generator, build
from fedsink.server.folder import RunFolder
from fedsink.server.loop import train
from fedsink.server.settings import ServerSettings
from fedsink.strategies import DPSinkhorn, DPSinkhornSettings, PrivatizeOnce, RoundStrategy


def server_app(settings: ServerSettings) -> ServerApp:
    """A `ServerApp` that trains one generator into `settings.folder`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(settings.threads)
        strategy = build_strategy(settings)
        title = "DP-Sinkhorn" if isinstance(strategy, DPSinkhorn) else "Sinkhorn GAN on LDP data"
        folder = RunFolder(settings.folder)
        train(grid, strategy, folder, settings.loop, settings.identity(), title)

    return app


def build_strategy(settings: ServerSettings) -> RoundStrategy:
    """The strategy with a freshly initialised generator.

    Raises:
        ModelError: the generator cannot make records of this shape.
    """
    generator = build_generator(settings)
    key = f"server|{settings.server_seed}".encode()
    if isinstance(settings.strategy, DPSinkhornSettings):
        return DPSinkhorn(settings.strategy, generator, key)
    return PrivatizeOnce(settings.strategy, generator, key)


def build_generator(settings: ServerSettings) -> Generator:
    """The generator with weights that depend on `server_seed` alone."""
    random = torch.Generator().manual_seed(settings.server_seed % 2**63)
    generator = build(
        settings.generator,
        settings.shape,
        len(settings.classes),
        generator=random,
        **settings.generator_options,
    )
    return generator.to(settings.device)
