"""Flower's grid with the server's duties to owners of nodes: signed requests, kept receipts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsink.deployment.node_grid import Inquiry
from fedsink.flower_internals import ForwardingGrid, complete_replies
from fedsink.protocol.charge_statement import ask_statement, given_statement
from fedsink.protocol.node_identity import given_by, identity_query, show_receipts
from fedsink.protocol.signatures import sign
from fedsink.reporting.output_files import write_atomic
from fedsink.values import read_json

log = logging.getLogger("fedsink.server")

_IDENTITY = "query.identity"
_LAST_SECONDS = 20.0  # for the nodes' last receipts


class SigningGrid(ForwardingGrid):
    """Shows every node the receipts that the server keeps, and signs other messages for it.

    The receipts are from this run and earlier ones. A node answers with a new one, which is kept.

    Args:
        grid: Flower's.
        receipts: file of all receipts by the names of the nodes.
        key: the operator's; None: nothing is signed.
    """

    def __init__(self, grid: Grid, receipts: Path, key: Ed25519PrivateKey | None) -> None:
        super().__init__(grid)
        self._path, self._key = receipts, key
        self._pull = complete_replies(grid)
        self._names: dict[int, str] = {}  # node → the name it gave
        self._statements: dict[int, dict[str, Any]] = {}  # node → what it signed

    def collect(self, run: str, *, everybody: bool = False) -> list[dict[str, Any]]:
        """Asks the nodes of this run for a last receipt; a slow node's earlier receipt stays.

        Args:
            run: public name of the run.
            everybody: ask all connected nodes: those of the run answered another process.

        Returns:
            Statements that nodes have signed of the run, by their clients' numbers; see
            `ChargeStatement`.
        """
        connected = set(self._grid.get_node_ids())
        nodes = sorted(connected if everybody else connected & set(self._names))
        if not nodes:
            return []
        questions = [identity_query(node) for node in nodes]
        for question in questions:
            ask_statement(question.content, run)
        inquiry = Inquiry(self, questions)
        deadline = time.monotonic() + _LAST_SECONDS
        while inquiry.working and time.monotonic() < deadline:
            time.sleep(0.2)
            inquiry.pull()
        return sorted(
            self._statements.values(), key=lambda signed: int(signed["statement"]["client"])
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages, with receipts and signatures for their receivers."""
        messages = list(messages)
        asks = any(message.metadata.message_type == _IDENTITY for message in messages)
        kept = list(self._receipts().values()) if asks else []
        for message in messages:
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            content = RecordDict(dict(message.content))  # other messages stay as they are
            if kind == _IDENTITY:
                show_receipts(content, kept)
            elif self._key is not None and node in self._names:
                sign(content, kind, self._names[node], self._key)
            message.content = content
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns replies that have arrived, and keeps the receipts in them."""
        replies = list(self._pull(message_ids))
        new = {}
        for reply in replies:
            if not reply.has_error() and (given := given_by(reply.content)) is not None:
                self._names[reply.metadata.src_node_id] = given.name
                new[given.name] = given.receipt
                if (signed := given_statement(reply.content)) is not None:
                    self._statements[reply.metadata.src_node_id] = signed
        if new:
            text = json.dumps(self._receipts() | new, indent=0, sort_keys=True)
            write_atomic(self._path, text.encode())
        return replies

    def _receipts(self) -> dict[str, str]:
        try:
            kept = read_json(self._path.read_bytes())
            return {str(name): str(receipt) for name, receipt in kept.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError):
            log.warning("%s is damaged, and its receipts are lost", self._path)
            return {}
