"""`engine=local`: every virtual client in this process."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsink.clients.node import keep_states
from fedsink.protocol.exchange import Exchange
from fedsink.simulation.cohort import BatchedApp, Cohort, Hosted
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.partial import Partial, parts


class LocalGrid(SimulationGrid):
    """Runs the `ClientApp` in process, one client after the other.

    Clients of one class share the content object of their messages and must not change it.

    Args:
        app: the app every virtual client runs.
        clients: how many there are.
        batched: answers for all of them at once where a strategy needs no more than sums.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        run_id: int = 1,
        *,
        batched: BatchedApp | None = None,
    ) -> None:
        super().__init__(clients, run_id)
        self._app = app
        self._contexts: dict[int, Context] = {}
        self._host(batched)

    def _host(self, batched: BatchedApp | None) -> None:
        self._batched = batched
        self._cohort = Cohort(
            Hosted(self._app, batched), self.clients, self.run.run_id, self._contexts
        )

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answer in the order of the messages."""
        return [self._cohort.answer(message) for message in messages]

    def adds_up(self, message_type: str) -> bool:
        """Whether the batched app answers messages of this type."""
        return self._batched is not None and self._batched.handles(message_type)

    def partials(self, exchange: Exchange) -> list[list[Partial]]:
        """The sums of all clients' replies."""
        contents = [broadcast.content for broadcast in exchange.broadcasts]
        return [self._cohort.add_up(exchange.message_type, contents, parts(exchange, 1)[0])]

    def keep(self, round: int) -> None:
        """Keep what the clients of this process remember."""
        keep_states(round)

    def close(self) -> None:
        """Forget the clients, and the records that were laid out for them."""
        self._contexts.clear()
        self._host(None)
