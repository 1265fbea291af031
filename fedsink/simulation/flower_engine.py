"""`engine=flower`: Flower's own simulation on Ray, unmodified; slow, for parity."""

from __future__ import annotations

import logging
import time

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsink.errors import ClientError
from fedsink.flower_internals import run_stock_simulation

_START_SECONDS = 60.0
_POLL_SECONDS = 1.0


def run_flower(
    server: ServerApp, client: ClientApp, clients: int, *, num_cpus: float, num_gpus: float
) -> None:
    """Runs both apps under Flower's `run_simulation`.

    Flower runs the server in a thread and only logs its failure, so its error is caught there and
    raised here.

    Raises:
        ClientError: after a minute nodes were missing.
        Exception: the error that the `ServerApp` raised.
    """
    caught: list[BaseException] = []
    carrying = ServerApp()

    @carrying.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            wait_for_nodes(grid, clients, _START_SECONDS)
            server(grid, context)
        except BaseException as error:
            caught.append(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    backend = {
        "client_resources": {"num_cpus": num_cpus, "num_gpus": num_gpus},
        "init_args": {"include_dashboard": False, "log_to_driver": False},
    }
    run_stock_simulation(carrying, client, clients, backend)
    if caught:
        raise caught[0]


def wait_for_nodes(grid: Grid, nodes: int, seconds: float) -> None:
    """Returns once `nodes` nodes are there: on a busy machine Flower starts the server before them.

    Raises:
        ClientError: fewer are there after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < nodes:
        if time.monotonic() > deadline:
            raise ClientError(
                f"{found} of {nodes} nodes are connected after {seconds:g} s: fewer clients=, or "
                "engine=ray, start sooner."
            )
        time.sleep(_POLL_SECONDS)
