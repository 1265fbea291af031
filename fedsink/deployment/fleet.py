"""A node's side of a SuperLink, over Flower's Fleet API: take a message, send a reply."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
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
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_all_nested_objects,
    get_object_tree,
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
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsink.errors import ClientError

HEARTBEAT = 30.0
"""Seconds between signs of life; after two that are missing Flower takes a node for offline."""

_AWAY = (502, 503, 504)
_ENDED = 403  # Flower's word for an object or a reply of a run that is no longer running
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_UNREADABLE = (ObjectPullError, UnexpectedObjectContentError, LookupError, TypeError, ValueError)

Request = TypeVar("Request")
Response = TypeVar("Response")


class LostMessageError(Exception):
    """A message cannot be read, or its run has ended and nobody waits for the reply."""


class Fleet:
    """One node of a SuperLink; a context manager that signs it on and off.

    While a SuperLink that has answered once is away, calls wait for it.

    Args:
        address: host:port of the SuperLink.
        certificate: of the authority that signed the SuperLink's; None: one of the system's.
        key: the node's private key; None: a fresh one, which registers itself.
        insecure: no TLS.

    Raises:
        ClientError: the SuperLink refuses the node, cannot be reached, or no longer knows it.
    """

    def __init__(
        self,
        address: str,
        certificate: Path | None,
        key: ec.EllipticCurvePrivateKey | None,
        *,
        insecure: bool = False,
    ) -> None:
        private = ec.generate_private_key(ec.SECP384R1()) if key is None else key
        self.address = address
        self._registers = key is None
        self._public = public_key_to_bytes(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            insecure,
            None if certificate is None else str(certificate),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )
        self._closing = threading.Event()
        self._lost = ""
        self._node = Node()
        self._heartbeats = HeartbeatSender(self._beat)

    def __enter__(self) -> Self:
        try:
            if self._registers:
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
            activated = self._client.ActivateNode(
                ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
            )
        except httpx.HTTPError as error:
            raise ClientError(
                f"The SuperLink at {self.address} did not accept this node: {_reason(error)}"
            ) from error
        self._node = Node(node_id=activated.node_id)
        self._heartbeats.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._heartbeats.stop()
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
            if self._registers:
                self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass  # it is offline after two missing heartbeats anyway
        self._client.close()

    @property
    def node_id(self) -> int:
        """The SuperLink's number of this node."""
        return int(self._node.node_id)

    def receive(self) -> Message | None:
        """The oldest message that waits for this node; None where there is none.

        Raises:
            ClientError: the SuperLink no longer knows this node.
            LostMessageError: the message cannot be read, or its run has ended.
        """
        response = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        tree, run = response.message_object_trees[0], response.messages_list[0].metadata.run_id
        pull = make_pull_object_fn_protobuf(self._calling(self._client.PullObject), self._node, run)
        confirm = make_confirm_message_received_fn_protobuf(
            self._calling(self._client.ConfirmMessageReceived), self._node, run
        )
        try:
            message: Message = pull_and_inflate_object_from_tree(
                tree, pull, confirm, return_type=Message, initial_backoff=0.1
            )
        except _UNREADABLE as error:
            raise LostMessageError(f"it cannot be read: {error}") from error
        _set_id(message, tree.object_id)
        return message

    def send(self, reply: Message, seconds: float) -> None:
        """Send the reply to a message that took so long; raises like `receive`."""
        _set_id(reply, reply.object_id)
        run = reply.metadata.run_id
        with no_object_id_recompute():
            response = self._call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            push = make_push_object_fn_protobuf(
                self._calling(self._client.PushObject), self._node, run, response.session_id
            )
            try:
                push_objects(
                    get_all_nested_objects(reply),
                    push,
                    object_ids_to_push=set(response.objects_to_push),
                )
            except ObjectPushError as error:
                raise LostMessageError(f"the reply was not taken: {error}") from error

    def _calling(self, call: Callable[[Request], Response]) -> Callable[[Request], Response]:
        return lambda request: self._call(call, request)

    def _call(self, call: Callable[[Request], Response], request: Request) -> Response:
        """Call the SuperLink, and wait for it while it is away."""
        pause, since = _PAUSE, time.monotonic()
        while True:
            if self._lost:
                raise ClientError(self._lost)
            try:
                response = call(request)
            except httpx.HTTPError as error:
                self._check(error)
                if pause == _PAUSE:
                    print(f"fedsink node: waiting for {self.address}: {error}", file=sys.stderr)
            else:
                if pause > _PAUSE:
                    away = time.monotonic() - since
                    print(f"fedsink node: back after {away:.0f} s.", file=sys.stderr)
                return response
            if self._closing.wait(pause):
                raise ClientError("The node was stopped.")
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self, error: httpx.HTTPError) -> None:
        """Raise for an answer that waiting will not change."""
        if isinstance(error, httpx.TransportError):
            return
        if not isinstance(error, httpx.HTTPStatusError):
            raise ClientError(f"The SuperLink's answer cannot be read: {error}") from error
        if error.response.status_code == _ENDED:
            raise LostMessageError("its run has ended")
        if error.response.status_code not in _AWAY:
            raise ClientError(
                f"The SuperLink at {self.address} no longer answers this node: {_reason(error)}"
            ) from error

    def _beat(self) -> bool:
        """One sign of life, in a thread of its own; whether the SuperLink took it."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        try:
            known = self._client.SendNodeHeartbeat(request).success
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _AWAY:
                return False
            known = False
        if not known:
            self._lost = f"The SuperLink at {self.address} no longer knows this node."
        return True


def _set_id(message: Message, message_id: str) -> None:
    metadata: Any = message.metadata
    metadata.__dict__["_message_id"] = message_id


def _reason(error: httpx.HTTPError) -> str:
    """One line of what the SuperLink or the network says."""
    if isinstance(error, httpx.HTTPStatusError):
        told = FlowerError.from_json(error.response.text)
        return f"HTTP {error.response.status_code}" if told is None else told.message
    return str(error) or type(error).__name__
