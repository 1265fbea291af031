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
from fedsink.files import write_atomic
from fedsink.flower_internals import ForwardingGrid, complete_replies
from fedsink.protocol.signing import (
    IDENTITY,
    MOST_RECEIPTS,
    NodeReceipt,
    ask_statement,
    given_statement,
    identity_query,
    node_receipt,
    show_receipts,
    sign,
)
from fedsink.values import read_json

log = logging.getLogger("fedsink.server")

_LAST_SECONDS = 20.0  # for the nodes' last receipts
_MOST = 4  # ids of one name, and names of one id: nodes without a key get an id at every start


_Receipts = dict[str, dict[str, str]]
"""Receipts by the name and the id of the node that gave them, both in the order of their coming."""


class SigningGrid(ForwardingGrid):
    """Shows every node the receipts that the server keeps, and signs other messages for it.

    The receipts are from this run and earlier ones. A node answers with a new one, which is kept
    under its name and its id, which is that of the key that Flower has authenticated.

    Guarantees:
        - No node's receipt takes the place of another node's, whatever names they give.
        - A request is signed for a name only on its way to the first connected node that gave it.

    `receipts` is the file of all receipts, `key` the operator's; None: nothing is signed.
    """

    def __init__(self, grid: Grid, receipts: Path, key: Ed25519PrivateKey | None) -> None:
        super().__init__(grid)
        self._path, self._key = receipts, key
        self._pull = complete_replies(grid)
        self._names: dict[int, str] = {}  # node → the name that it gave last, in this process
        self._statements: dict[int, dict[str, Any]] = {}  # node → what it signed

    def collect(self, run: str, *, everybody: bool = False) -> list[dict[str, Any]]:
        """Asks the nodes of this run for a last receipt; returns what they signed, by client."""
        # A slow node's earlier receipt stays. `everybody`: all connected nodes are asked, because
        # those of the run answered another process.
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
        receipts = self._receipts()
        texts = [text for of_name in receipts.values() for text in of_name.values()]
        shown = texts[-MOST_RECEIPTS:]
        for message in messages:
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            content = RecordDict(dict(message.content))  # other messages stay as they are
            if kind == IDENTITY:
                show_receipts(content, shown)
            elif self._key is not None and self._holds(node, receipts):
                sign(content, kind, self._names[node], self._key)
            message.content = content
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns replies that have arrived, and keeps the receipts in them."""
        replies = list(self._pull(message_ids))
        answered = [reply for reply in replies if not reply.has_error()]
        new = [(r, receipt) for r in answered if (receipt := node_receipt(r.content)) is not None]
        if not new:
            return replies
        receipts = self._receipts()
        for reply, receipt in new:
            node = reply.metadata.src_node_id
            self._names[node] = receipt.name
            _keep(receipts, receipt, str(node))
            signed = given_statement(reply.content)
            if not self._holds(node, receipts):
                log.warning("node %s gives the name of another node, which is connected", node)
            elif signed is not None:
                self._statements[node] = signed
        write_atomic(self._path, json.dumps(receipts, indent=0).encode())
        return replies

    def _holds(self, node: int, receipts: _Receipts) -> bool:
        """Tells whether the name that a node gave is its own, and no other connected node's."""
        of_name = receipts.get(self._names.get(node, ""), {})
        if set(of_name) == {str(node)}:
            return True
        connected = {str(other) for other in self._grid.get_node_ids()}
        return next((other for other in of_name if other in connected), "") == str(node)

    def _receipts(self) -> _Receipts:
        """Returns the receipts by name and by node, the first that gave the name in front."""
        try:
            receipts = read_json(self._path.read_bytes())
            return {
                str(name): {str(node): str(text) for node, text in of_name.items()}
                if isinstance(of_name, dict)
                else {"": str(of_name)}  # of a version that knew names alone
                for name, of_name in receipts.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError):
            log.warning("%s is damaged, and its receipts are lost", self._path)
            return {}


def _keep(receipts: _Receipts, receipt: NodeReceipt, node: str) -> None:
    """Puts a node's receipt beside those of other nodes, and forgets those of a node too many."""
    of_name = receipts.setdefault(receipt.name, {})
    of_name[node] = receipt.receipt
    if len(of_name) > _MOST:  # the first one keeps its name
        del of_name[list(of_name)[1]]
    for name in [name for name, nodes in receipts.items() if node in nodes][:-_MOST]:
        del receipts[name][node]
        if not receipts[name]:
            del receipts[name]
