"""`engine=local`: every virtual client in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsink.simulation.grid import SimulationGrid, client_context, client_of


class LocalGrid(SimulationGrid):
    """Runs the `ClientApp` in process.

    Clients of one class share the content object of their messages and must not change it.

    Args:
        app: the app every virtual client runs.
        clients: how many there are.
    """

    def __init__(self, app: ClientApp, clients: int, run_id: int = 1) -> None:
        super().__init__(clients, run_id)
        self._app = app
        self._contexts = [client_context(k, clients, run_id) for k in range(clients)]

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answer in the order of the messages."""
        return [
            self._app(message, self._contexts[client_of(message.metadata.dst_node_id)])
            for message in messages
        ]
