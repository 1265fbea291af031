"""The two places where Flower's internals are touched; a contract test watches both."""

from __future__ import annotations

from typing import Any

from flwr.app import Message
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1


def become(run_id: int, node_id: int) -> None:
    """Say which run and node this process speaks for: `Message(...)` refuses to exist without."""
    TaskIdentity.run_id = run_id
    TaskIdentity.task_id = 1
    TaskIdentity.node_id = node_id


def empty_run(run_id: int) -> Run:
    """A `Run` as the grid must report it."""
    return Run.create_empty(run_id=run_id)


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message the id that a SuperLink would have given it."""
    metadata: Any = message.metadata
    metadata.__dict__["_message_id"] = message_id
