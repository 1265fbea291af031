"""`engine=flower`: Flower's own simulation on Ray, unmodified; slow, for parity."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsink.deployment.waiting import wait_for_nodes

_START_SECONDS = 60.0


def run_flower(
    server: ServerApp, client: ClientApp, clients: int, *, num_cpus: float, num_gpus: float
) -> None:
    """Run both apps under `flwr.simulation.run_simulation`.

    Flower runs the server in a thread and only logs its failure, so its error is caught there and
    raised here.

    Raises:
        ClientError: after a minute nodes were missing.
        Exception: the error that the `ServerApp` raised.
    """
    from flwr.simulation import run_simulation

    caught: list[BaseException] = []
    carrying = ServerApp()

    @carrying.main()
    def main(grid: Grid, context: Context) -> None:
        def started() -> None:
            # Flower starts the server beside its nodes, on a busy machine before them.
            advice = "fewer clients=, or engine=ray, start sooner"
            wait_for_nodes(grid, clients, _START_SECONDS, advice=advice)
            server(grid, context)

        _guard(started, caught)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(
            server_app=carrying,
            client_app=client,
            num_supernodes=clients,
            backend_config={
                "client_resources": {"num_cpus": num_cpus, "num_gpus": num_gpus},
                "init_args": {"include_dashboard": False, "log_to_driver": False},
            },
        )
    if caught:
        raise caught[0]


def _guard(call: Callable[[], None], caught: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        caught.append(error)
