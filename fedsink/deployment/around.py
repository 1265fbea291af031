"""A grid around another one: what a subclass does not change goes through."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class GridAround(Grid):
    """Passes every call on to another grid.

    Args:
        grid: the other one.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        return self._grid.get_node_ids()

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to one node."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have arrived."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)
