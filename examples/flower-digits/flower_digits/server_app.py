"""The server: trains a generator from noised gradients, and sees no record."""

import json

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsink.deployment.deployed_run import deployable, run_deployed
from fedsink.deployment.server_folder import server_home

app = ServerApp()
CENTRAL = ("capacity", "strategy.uses_per_message")  # keys that mode=ldp does not have


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs fedsink with the keys of `[tool.flwr.app.config]` and of `--run-config`."""
    keys = context.run_config
    central = keys["mode"] == "central"
    config = deployable([f"{k}={v}" for k, v in keys.items() if central or k not in CENTRAL])
    name = f"flower-digits-{context.run_id}"
    run = {"action": "run", "name": name, "config": json.dumps(config)}
    run_deployed(grid, run, tell=lambda line: None)
    print(f"Generator and guarantee: {server_home() / 'runs' / name}")
