"""The Flower `ServerApp`: the same under every engine and in a deployment."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.server.running import run_server
from fedsink.server.settings import ServerSettings


def server_app(settings: ServerSettings) -> ServerApp:
    """A `ServerApp` that trains one generator into `settings.folder`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_server(grid, settings)

    return app


app = ServerApp()
"""The `ServerApp` of a deployment, named by deploy/pyproject.toml."""


@app.main()
def _deployed(grid: Grid, context: Context) -> None:
    from fedsink.server.deployment import run_deployed

    run_deployed(grid, context.run_config)
