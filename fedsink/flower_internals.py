"""Uses of Flower beyond its public API: no other file can break with a new Flower.

Public is what `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.serverapp.strategy` export.
`CALLS`, `FIELDS` and `ATTRIBUTES` list the rest as MODULE:NAME. tests/test_flower_internals.py
compares the lists with the Flower that is installed and names what has changed; pyproject.toml
admits the versions on which that test passes.

A node imports this file. Functions import what needs Ray, or half a second, where they use it.

>>> become(run_id=3, node_id=SERVER_NODE)
>>> message = Message(RecordDict(), dst_node_id=5, message_type="query")
>>> set_message_id(message, "41")
>>> message.metadata.run_id, message.metadata.message_id
(3, '41')
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import Run as Run  # the type of `Grid.run`
from flwr.supercore.task_identity import TaskIdentity

from fedsink.environment import ray_is_connected

if TYPE_CHECKING:
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.superlink.grid import HttpGrid

_INFLATABLE = "flwr.supercore.inflatable"  # a folder of modules

CALLS: dict[str, tuple[str, ...]] = {
    "flwr.app.message:remove_content_from_message": ("message",),
    "flwr.common.serde:message_to_proto": ("message",),
    "flwr.simulation:run_simulation": (
        "server_app", "client_app", "num_supernodes", "backend_config",
    ),
    "flwr.supercore.error:FlowerError.from_json": ("value",),
    "flwr.supercore.heartbeat:HeartbeatSender": ("heartbeat_fn",),
    f"{_INFLATABLE}.inflatable_object:get_all_nested_objects": ("obj",),
    f"{_INFLATABLE}.inflatable_object:get_object_tree": ("obj",),
    f"{_INFLATABLE}.inflatable_object:iterate_object_tree": ("tree",),
    f"{_INFLATABLE}.inflatable_object:no_object_id_recompute": (),
    f"{_INFLATABLE}.inflatable_protobuf_utils:make_confirm_message_received_fn_protobuf": (
        "confirm_message_received_protobuf", "node", "run_id",
    ),
    f"{_INFLATABLE}.inflatable_protobuf_utils:make_pull_object_fn_protobuf": (
        "pull_object_protobuf", "node", "run_id",
    ),
    f"{_INFLATABLE}.inflatable_protobuf_utils:make_push_object_fn_protobuf": (
        "push_object_protobuf", "node", "run_id", "session_id",
    ),
    f"{_INFLATABLE}.inflatable_utils:inflate_object_from_contents": (
        "object_id", "object_contents",
    ),
    f"{_INFLATABLE}.inflatable_utils:pull_and_inflate_object_from_tree": (
        "object_tree", "pull_object_fn", "confirm_object_received_fn", "return_type",
        "initial_backoff",
    ),
    f"{_INFLATABLE}.inflatable_utils:pull_objects": ("object_ids", "pull_object_fn"),
    f"{_INFLATABLE}.inflatable_utils:push_objects": (
        "objects", "push_object_fn", "object_ids_to_push",
    ),
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": ("component_name",),
    "flwr.supercore.primitives.asymmetric:public_key_to_bytes": ("public_key",),
    "flwr.supercore.run:Run.create_empty": ("run_id",),
    "flwr.supernode.fleet_http_client:FleetHttpClient.from_server_address": (
        "server_address", "insecure", "root_certificates", "interceptors",
    ),
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": (
        "private_key", "public_key",
    ),
}  # fmt: skip
"""Functions and classes that are called: the parameters that they are given."""

FIELDS: dict[str, tuple[str, ...]] = {
    "flwr.proto.fleet_pb2:ActivateNodeRequest": ("public_key", "heartbeat_interval"),
    "flwr.proto.fleet_pb2:ActivateNodeResponse": ("node_id",),
    "flwr.proto.fleet_pb2:DeactivateNodeRequest": ("node_id",),
    "flwr.proto.fleet_pb2:PullMessagesRequest": ("node",),
    "flwr.proto.fleet_pb2:PullMessagesResponse": ("messages_list", "message_object_trees"),
    "flwr.proto.fleet_pb2:PushMessagesRequest": (
        "node", "messages_list", "message_object_trees", "clientapp_runtime_list",
    ),
    "flwr.proto.fleet_pb2:PushMessagesResponse": ("session_id", "objects_to_push"),
    "flwr.proto.fleet_pb2:RegisterNodeFleetRequest": ("public_key",),
    "flwr.proto.fleet_pb2:UnregisterNodeFleetRequest": ("node_id",),
    "flwr.proto.heartbeat_pb2:SendNodeHeartbeatRequest": ("node", "heartbeat_interval"),
    "flwr.proto.heartbeat_pb2:SendNodeHeartbeatResponse": ("success",),
    "flwr.proto.message_pb2:ConfirmMessageReceivedRequest": (
        "node", "run_id", "message_object_id",
    ),
    "flwr.proto.message_pb2:ObjectTree": ("object_id",),
    "flwr.proto.node_pb2:Node": ("node_id",),
    "flwr.proto.runtime_pb2:PullAppMessagesRequest": ("message_ids",),
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": ("messages_list", "message_object_trees"),
}  # fmt: skip
"""Messages of Flower's protocol: the fields that are written or read."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "flwr.app:Message": ("object_id",),
    "flwr.app:Metadata": ("_message_id",),
    "flwr.serverapp:Grid": (
        "create_message", "get_node_ids", "pull_messages", "push_messages", "run",
        "send_and_receive", "set_run",
    ),
    "flwr.server.superlink.fleet.vce.backend.raybackend:RayBackend": ("terminate",),
    "flwr.supercore.error:FlowerError": ("message",),
    "flwr.supercore.heartbeat:HeartbeatSender": ("start", "stop"),
    f"{_INFLATABLE}.inflatable_object:UnexpectedObjectContentError": (),
    f"{_INFLATABLE}.inflatable_utils:ObjectPullError": (),
    f"{_INFLATABLE}.inflatable_utils:ObjectPushError": (),
    f"{_INFLATABLE}.inflatable_utils:ObjectUnavailableError": (),
    "flwr.supercore.run:Run": ("run_id",),
    "flwr.supercore.task_identity:TaskIdentity": ("run_id", "task_id", "node_id"),
    "flwr.superlink.grid:HttpGrid": ("_runtime_client", "node", "run"),
    "flwr.supercore.runtime:RuntimeHttpClient": (
        "PullMessages", "PullObject", "ConfirmMessageReceived",
    ),
    "flwr.supernode.fleet_http_client:FleetHttpClient": (
        "RegisterNode", "ActivateNode", "DeactivateNode", "UnregisterNode", "SendNodeHeartbeat",
        "PullMessages", "PushMessages", "PullObject", "PushObject", "ConfirmMessageReceived",
        "close",
    ),
}  # fmt: skip
"""Attributes of classes and their instances; of `Grid`, all that a subclass has to define."""

SERVER_NODE = 1
"""Flower's node id of every server."""

_UNREADABLE = (ObjectPullError, UnexpectedObjectContentError, LookupError, TypeError, ValueError)

Request = TypeVar("Request")
Response = TypeVar("Response")


def become(run_id: int, node_id: int) -> None:
    """Sets the run and the node that this process speaks for; without, `Message(...)` raises."""
    TaskIdentity.run_id = run_id
    TaskIdentity.task_id = 1
    TaskIdentity.node_id = node_id


def empty_run(run_id: int) -> Run:
    """Returns a `Run` as a grid must report it."""
    return Run.create_empty(run_id=run_id)


def set_message_id(message: Message, message_id: str) -> None:
    """Gives a message the id that a SuperLink would have given it."""
    metadata: Any = message.metadata
    metadata.__dict__["_message_id"] = message_id


class ForwardingGrid(Grid):
    """Wraps a grid and forwards every call; subclasses override some."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def run(self) -> Run:
        return self._grid.run

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


def run_stock_simulation(
    server: ServerApp, client: ClientApp, clients: int, backend: dict[str, Any]
) -> None:
    """Runs both apps under `flwr.simulation.run_simulation`, without its deprecation warnings."""
    # Flower's backend takes the Ray that this process is connected to, and would shut it down.
    from unittest.mock import patch

    from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
    from flwr.simulation import run_simulation

    class Connected(RayBackend):
        def terminate(self) -> None:
            if self.pool:
                self.pool.terminate_all_actors()

    kind = Connected if ray_is_connected() else RayBackend
    with warnings.catch_warnings(), patch(f"{RayBackend.__module__}.RayBackend", kind):
        warnings.simplefilter("ignore")
        run_simulation(
            server_app=server, client_app=client, num_supernodes=clients, backend_config=backend
        )


# At the server of a deployment


def complete_replies(grid: Grid) -> Callable[[Iterable[str]], Iterable[Message]]:
    """Returns a `pull_messages` that waits for no upload: `CompleteReplies` for a SuperLink."""
    from flwr.superlink.grid import HttpGrid

    return CompleteReplies(grid).pull if isinstance(grid, HttpGrid) else grid.pull_messages


class CompleteReplies:
    """Collects complete replies; a half-uploaded one does not block the others."""

    # Flower's `pull_messages` waits for all parts of each reply that has begun to arrive: three
    # minutes where its node died in the upload, in which no other is seen and no round ends.

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        # A SuperLink announces a reply once. Message id → tree of its reply's parts, those here.
        self._begun: dict[str, tuple[ObjectTree, dict[str, bytes]]] = {}

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """Returns complete replies, without waiting; parts of replies to others are forgotten."""
        awaited = list(message_ids)
        self._begun = {sent: self._begun[sent] for sent in awaited if sent in self._begun}
        self._begin([sent for sent in awaited if sent not in self._begun])
        replies = []
        for sent, (tree, parts) in list(self._begun.items()):
            try:
                complete = self._fetch(tree, parts)
            except ObjectPullError:  # the upload was given up; Flower has an error for this message
                del self._begun[sent]
                continue
            if complete:
                del self._begun[sent]
                replies.append(self._received(tree, parts))
        return replies

    def _begin(self, message_ids: list[str]) -> None:
        if not message_ids:
            return
        response = self._grid._runtime_client.PullMessages(
            PullAppMessagesRequest(message_ids=message_ids)
        )
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            self._begun[message.metadata.reply_to_message_id] = tree, {}

    def _fetch(self, tree: ObjectTree, parts: dict[str, bytes]) -> bool:
        """Adds the parts that have arrived; returns True when all have."""
        pull = make_pull_object_fn_protobuf(
            self._grid._runtime_client.PullObject, self._grid.node, self._grid.run.run_id
        )

        def take(part: str) -> bytes:
            try:
                parts[part] = pull(part)
            except ObjectUnavailableError:  # raised again, it would make Flower wait
                return b""
            return parts[part]

        names = {node.object_id for node in iterate_object_tree(tree)}
        pull_objects(sorted(names - parts.keys()), take)
        return names == parts.keys()

    def _received(self, tree: ObjectTree, parts: dict[str, bytes]) -> Message:
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node,
                run_id=self._grid.run.run_id,
                message_object_id=tree.object_id,
            )
        )
        reply = cast(Message, inflate_object_from_contents(tree.object_id, parts))
        set_message_id(reply, tree.object_id)
        return reply


# At a node


class LostMessageError(Exception):
    """A message cannot be read, or its run has ended and nobody waits for the reply."""


class Calling(Protocol):
    """Makes a call to the SuperLink, as often as it takes."""

    def __call__(self, call: Callable[[Request], Response], request: Request) -> Response: ...


class FleetClient:
    """Flower's Fleet API as one node uses it, at the SuperLink of an address host:port.

    `certificate` is that of the authority that signed the SuperLink's; None: one of the system's.
    `calling` makes the calls of `receive` and `send`; those of the other methods are made once, and
    raise httpx.HTTPError.
    """

    def __init__(
        self,
        address: str,
        certificate: Path | None,
        key: ec.EllipticCurvePrivateKey,
        *,
        insecure: bool,
        calling: Calling,
    ) -> None:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        self._calling = calling
        self._public = public_key_to_bytes(key.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            insecure,
            None if certificate is None else str(certificate),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        self._node = Node()

    @property
    def node_id(self) -> int:
        """The SuperLink's number of this node, after `activate`."""
        return int(self._node.node_id)

    def register(self) -> None:
        self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))

    def unregister(self) -> None:
        self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self.node_id))

    def activate(self, heartbeat: float) -> None:
        """Signs the node on; signs of life follow every `heartbeat` seconds."""
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=heartbeat)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)

    def deactivate(self) -> None:
        self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))

    def beat(self, heartbeat: float) -> bool:
        """Gives a sign of life; returns False where the SuperLink no longer knows the node."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=heartbeat)
        return bool(self._client.SendNodeHeartbeat(request).success)

    def receive(self) -> Message | None:
        """Returns the oldest message that waits for this node; None where there is none."""
        response = self._calling(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        tree, run = response.message_object_trees[0], response.messages_list[0].metadata.run_id
        pull = make_pull_object_fn_protobuf(self._often(self._client.PullObject), self._node, run)
        confirm = make_confirm_message_received_fn_protobuf(
            self._often(self._client.ConfirmMessageReceived), self._node, run
        )
        try:
            message: Message = pull_and_inflate_object_from_tree(
                tree, pull, confirm, return_type=Message, initial_backoff=0.1
            )
        except _UNREADABLE as error:
            raise LostMessageError(f"it cannot be read: {error}") from error
        set_message_id(message, tree.object_id)
        return message

    def send(self, reply: Message, seconds: float) -> None:
        """Sends the reply to a message that took so long."""
        set_message_id(reply, reply.object_id)
        run = reply.metadata.run_id
        with no_object_id_recompute():
            response = self._calling(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            push = make_push_object_fn_protobuf(
                self._often(self._client.PushObject), self._node, run, response.session_id
            )
            try:
                push_objects(
                    get_all_nested_objects(reply),
                    push,
                    object_ids_to_push=set(response.objects_to_push),
                )
            except ObjectPushError as error:
                raise LostMessageError(f"the reply was not taken: {error}") from error

    def close(self) -> None:
        self._client.close()

    def _often(self, call: Callable[[Request], Response]) -> Callable[[Request], Response]:
        return lambda request: self._calling(call, request)


def heartbeats(beat: Callable[[], bool]) -> HeartbeatSender:
    """Returns a thread that calls `beat` in Flower's rhythm; `beat` returns success."""
    from flwr.supercore.heartbeat import HeartbeatSender

    return HeartbeatSender(beat)


def told_by_superlink(text: str) -> str | None:
    """Returns Flower's own sentence in the body of an HTTP error; None where there is none."""
    from flwr.supercore.error import FlowerError

    told = FlowerError.from_json(text)
    return None if told is None else str(told.message)
