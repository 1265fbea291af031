"""The Flower `ServerApp` of a deployment, named by deploy/pyproject.toml."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.server.deployment import run_deployed

app = ServerApp()
"""Runs what `run_config` says on the nodes that are connected."""


@app.main()
def _main(grid: Grid, context: Context) -> None:
    run_deployed(grid, context.run_config)
