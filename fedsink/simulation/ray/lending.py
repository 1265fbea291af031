"""What cohorts on other machines are given in place of files: a key, and passes to answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flwr.app import Message

from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.errors import PrivacyError
from fedsink.privacy import SecretKey
from fedsink.protocol.exchange import Content, Exchange


class Lending:
    """The driver's half of clients whose noise is secret, and whose cohorts may be anywhere.

    Key file and ledger stay on this machine's disk. Every message is admitted here before it is
    sent, and the cohorts answer what was admitted, under the key that they are lent. Noise is a
    function of key, client, round and what was charged: a cohort that is started again draws the
    same.

    Guarantees:
        - A charge is committed before what it pays for is sent to any cohort.
        - The key is given to processes on this machine's node alone, or over TLS.

    Args:
        settings: of this machine, with its files.

    Raises:
        PrivacyError: what is released must be stored on this disk, or the key cannot be read.
    """

    def __init__(self, settings: NodeSettings) -> None:
        if settings.policy is not None or settings.noise == "secure" or settings.key_file is None:
            kept = "policy=" if settings.policy is not None else "noise=secure"
            raise PrivacyError(
                f"{kept} keeps its replies on this machine's disk, where a cluster's nodes cannot "
                "store any: leave out engine.address, or use the fast noise of a run without it."
            )
        self._admitting = NodeCohort(replace(settings, device="cpu"))  # nothing is computed here
        self.settings = replace(
            settings, lent=SecretKey.load(settings.key_file), key_file=None, ledger=None
        )

    def passes(self, exchange: Exchange) -> list[bytes]:
        """Charge a round of broadcasts; what cohorts may answer."""
        return [
            digest
            for asked in exchange.broadcasts
            for digest in self._admitting.admit(
                exchange.message_type, asked.content, list(asked.nodes)
            )
        ]

    def passes_one_by_one(self, messages: Sequence[Message], clients: Sequence[int]) -> list[bytes]:
        """Charge messages, each to one client; what cohorts may answer."""
        return [
            digest
            for message, client in zip(messages, clients, strict=True)
            for digest in self._admitting.admit(
                message.metadata.message_type, Content.received(message.content), [client]
            )
        ]
