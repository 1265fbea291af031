"""Refuses a ledger that is older than the node's releases, receipts or states.

A ledger that was put back lacks charges, and its budget would be spent again. Three things reveal
it: replies stored beside it, receipts that servers show, and states of answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from fedsink.clients.owner.gate import round_digests
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.replies import ReplyStore
from fedsink.errors import LedgerError, PrivacyError, RolledBackError
from fedsink.files import write_once
from fedsink.privacy import SecretKey

log = logging.getLogger("fedsink.clients")

_NUMBER, _HASH = 8, 16  # bytes


def refuse_rollback(ledger: Ledger, store: ReplyStore) -> None:
    """Refuses a ledger that does not know a reply beside it: it would spend a budget again.

    A use is claimed before its reply is stored, so such a ledger is older than the reply, or new.
    """
    replies = store.digests()  # listed first: these replies were claimed before
    if not ledger.knows(round_digests(digest, 1)[0] for digest in replies):
        raise LedgerError(
            "The ledger does not know every reply that is stored beside it, so it was put back or "
            "replaced, and charges are missing: restore the ledger that belongs to the replies."
        )


def refuse_forgotten(ledger: Ledger, states: Path) -> None:
    """Refuses an empty ledger where states show that there were charges, which are lost."""
    if ledger.head()[0] == 0 and any(states.glob("*/*.state")):
        raise LedgerError(
            f"The ledger is empty beside states that were learned from the data ({states}): "
            "restore the ledger, or remove the states (fedsink ledger forget-states) if the data "
            "are new."
        )


class Receipts:
    """Receipts for one ledger's head, which a server keeps and shows again.

    A receipt holds the number of the last fact and a keyed hash of its seal, under a message
    authentication code of the node's own key; the number is masked. So a server learns nothing of
    the ledger from it, not even how many facts there are, and cannot make one.

    Guarantees:
        - A ledger that lacks a fact of which the node has made a receipt, or has another one in
          its place, is refused from the moment that any server shows it, until it is restored.
        - A text that is no receipt of this node changes nothing.
        - A receipt reveals nothing of the ledger without the key.

    The node's key, and a receipt that is ahead of the ledger, lie in `folder`, its state.
    """

    def __init__(self, folder: Path, lineage: str) -> None:
        path = folder / "receipt.key"
        if not path.exists():
            # Another process may be first; otherwise loading raises.
            with contextlib.suppress(PrivacyError):
                SecretKey.create(path, lineage)
        self._key = SecretKey.load(path).secret
        self._folder = folder

    @property
    def name(self) -> str:
        """Public name of the node, at random; it stays as long as the node's key."""
        return self._hash(b"name").hex()

    def give(self, ledger: Ledger) -> str:
        """Returns a receipt for all facts that the ledger has now."""
        number, seal = ledger.head()
        return self._receipt(number, seal)

    def check(self, ledger: Ledger, shown: Iterable[str] = ()) -> None:
        """Refuses a ledger that is older than one of these receipts, or than one shown before.

        A receipt that is ahead of the ledger is kept until the ledger has its fact.
        """
        for receipt in shown:
            number = self._number(receipt)
            if number is not None and not self._holds(ledger, number, receipt):
                name = hashlib.sha256(bytes.fromhex(receipt)).hexdigest()[:16]
                try:
                    write_once(self._folder / f"ahead-{name}.receipt", receipt.encode())
                except OSError as error:
                    raise LedgerError(
                        f"a receipt cannot be kept in {self._folder} ({error.strerror}): make room "
                        "or fix its permissions."
                    ) from None
        paths = sorted(self._folder.glob("ahead-*.receipt"))
        for path in paths:
            receipt = path.read_text(errors="replace")
            number = self._number(receipt)
            if number is None or not self._holds(ledger, number, receipt):
                raise RolledBackError(
                    "The ledger lacks facts of which this node has given a receipt, so it was put "
                    "back or replaced, and charges are missing: restore the latest one (and then "
                    f"remove {path}, if that is damaged)."
                )
        for path in paths:
            path.unlink(missing_ok=True)

    def _receipt(self, number: int, seal: bytes) -> str:
        fact = self._hash(b"fact", number.to_bytes(_NUMBER, "big"), seal)
        mask = self._hash(b"mask", fact)[:_NUMBER]
        masked = bytes(a ^ b for a, b in zip(number.to_bytes(_NUMBER, "big"), mask, strict=True))
        return (masked + fact + self._hash(b"receipt", masked, fact)).hex()

    def _number(self, receipt: str) -> int | None:
        """Returns the number of the fact that a receipt is for; None for any other text."""
        try:
            content = bytes.fromhex(receipt)
        except ValueError:
            return None
        if content.hex() != receipt:  # `fromhex` also reads capitals and spaces
            return None
        masked, fact = content[:_NUMBER], content[_NUMBER : _NUMBER + _HASH]
        if not hmac.compare_digest(content, masked + fact + self._hash(b"receipt", masked, fact)):
            return None
        mask = self._hash(b"mask", fact)[:_NUMBER]
        return int.from_bytes(bytes(a ^ b for a, b in zip(masked, mask, strict=True)), "big")

    def _holds(self, ledger: Ledger, number: int, receipt: str) -> bool:
        seal = ledger.seal(number)
        return seal is not None and hmac.compare_digest(self._receipt(number, seal), receipt)

    def _hash(self, purpose: bytes, *parts: bytes) -> bytes:
        content = b"\0".join([b"fedsink", purpose, b"".join(parts)])
        return hmac.digest(self._key, content, hashlib.sha256)[:_HASH]
