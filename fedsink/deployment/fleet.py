"""A node's side of a SuperLink: signs on, takes messages, sends replies, waits for a SuperLink."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from fedsink.errors import ClientError
from fedsink.flower_internals import (
    FleetClient,
    LostMessageError,
    Request,
    Response,
    heartbeats,
    told_by_superlink,
)

HEARTBEAT = 30.0
"""Seconds between signs of life; after two that are missing Flower takes a node for offline."""

_AWAY = (502, 503, 504)
_ENDED = 403  # Flower's word for an object or a reply of a run that is no longer running
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Fleet:
    """Connects one node to a SuperLink; a context manager that signs the node on and off."""

    # Calls wait while a SuperLink that has answered once is away; one that refuses or has forgotten
    # the node raises ClientError.

    def __init__(
        self,
        address: str,  # host:port
        certificate: Path | None,  # of the SuperLink's authority; None: the system's
        key: ec.EllipticCurvePrivateKey | None,  # None: a fresh one, which registers itself
        *,
        insecure: bool = False,  # no TLS
    ) -> None:
        self.address = address
        self._registers = key is None
        self._client = FleetClient(
            address,
            certificate,
            ec.generate_private_key(ec.SECP384R1()) if key is None else key,
            insecure=insecure,
            calling=self._call,
        )
        self._closing = threading.Event()
        self._lost = ""
        self._heartbeats = heartbeats(self._beat)

    def __enter__(self) -> Self:
        try:
            if self._registers:
                self._client.register()
            self._client.activate(HEARTBEAT)
        except httpx.HTTPError as error:
            raise ClientError(
                f"The SuperLink at {self.address} did not accept this node: {_reason(error)}"
            ) from error
        self._heartbeats.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._heartbeats.stop()
        try:
            self._client.deactivate()
            if self._registers:
                self._client.unregister()
        except (httpx.HTTPError, RuntimeError):
            pass  # the node is offline after two missing heartbeats anyway
        self._client.close()

    @property
    def node_id(self) -> int:
        """The SuperLink's number of this node."""
        return self._client.node_id

    def receive(self) -> Message | None:
        """Returns the oldest message for this node, or None; a lost one is a LostMessageError."""
        return self._client.receive()

    def send(self, reply: Message, seconds: float) -> None:
        """Sends the reply to a message, and the seconds it took; raises like `receive`."""
        self._client.send(reply, seconds)

    def _call(self, call: Callable[[Request], Response], request: Request) -> Response:
        """Calls the SuperLink, and waits for it while it is away."""
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
        """Raises for an answer that waiting will not change."""
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
        """Sends one heartbeat, in the thread of heartbeats; False where it was not received."""
        try:
            registered = self._client.beat(HEARTBEAT)
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _AWAY:
                return False
            registered = False
        if not registered:
            self._lost = f"The SuperLink at {self.address} no longer knows this node."
        return True


def _reason(error: httpx.HTTPError) -> str:
    """Returns the error of the SuperLink or the network in one line."""
    if isinstance(error, httpx.HTTPStatusError):
        told = told_by_superlink(error.response.text)
        return f"HTTP {error.response.status_code}" if told is None else told
    return str(error) or type(error).__name__
