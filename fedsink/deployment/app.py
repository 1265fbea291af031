"""The Flower `ServerApp` of a deployment, named by deploy/pyproject.toml."""

from __future__ import annotations

import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.deployment.deployed_run import run_deployed

app = ServerApp()
"""Runs what `run_config` says on the nodes that are connected."""


@app.main()
def _main(grid: Grid, context: Context) -> None:
    # Flower relays what is written here to whoever submitted the run.
    run_deployed(grid, context.run_config, lambda line: sys.stdout.write(line))
