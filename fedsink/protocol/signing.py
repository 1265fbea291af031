"""Keys of operators and nodes, what is signed by them, and what a node says of itself.

An operator signs each request for one node (`sign`, `signer`). A server asks for a node's identity
before anything else: its number, the protocol it speaks, its name and a receipt for its ledger. To
a server a receipt is a text without meaning: it keeps the receipts of all nodes, and shows all of
them to every node that it asks. A node knows its own receipts by a key that never leaves it, and so
finds out that its ledger was put back (`fedsink.clients.owner.rollback`). A node signs the charge
of one run (`ChargeStatement`), by a key of its own: a server asks for the statement with its last
question for the identity and keeps it in nodes.json. It can leave a statement out, and cannot write
or change one. All signatures are ed25519. What operators sign begins with ``fedsink request``, what
nodes sign with ``fedsink node``, that of secure aggregation (`fedsink.secagg.identities`) with
``fedsink secagg``: none passes for another.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedsink.errors import (
    BadSignatureError,
    ConfigError,
    ProtocolVersionError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.files import write_once
from fedsink.protocol.aggregation import has_trip, trip_bytes
from fedsink.protocol.packing import PROTOCOL_VERSION, digest, has_fields, packed
from fedsink.secagg.identities import is_weak, verifies
from fedsink.values import is_number, read_json

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

FORMAT = "fedsink charge statement 2"
LONGEST_STATEMENT = 100_000
"""Characters of a signed statement that a server keeps."""

LONGEST = 128  # characters of a node's name or a receipt
MOST_RECEIPTS = 10_000  # that a node looks at
IDENTITY = "query.identity"  # type of the question

_PREFIX, _BYTES = "ed25519:", 32
# Parts of a message.
_OPERATOR, _STATEMENT, _IDENTITY, _SHOWN, _GIVEN = (
    "operator", "statement", "identity", "receipts", "owner",
)  # fmt: skip
_BEYOND = 1e300


def _put(record: RecordDict, part: str, **values: Any) -> None:
    # Imported here, so that keys and statements are read where Flower is not installed.
    from flwr.app import ConfigRecord

    record[part] = ConfigRecord(values)


def _part(record: RecordDict, part: str) -> Mapping[str, object]:
    values: Mapping[str, object] = record.config_records.get(part, {})
    return values


def shown_key(public: bytes) -> str:
    """Returns a public key as policies state it."""
    return _PREFIX + base64.b64encode(public).decode()


def read_key(text: str) -> bytes:
    """Reads what `shown_key` wrote; no key, or a weak one, is a ConfigError."""
    try:
        public = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        public = b""
    if not text.startswith(_PREFIX) or len(public) != _BYTES:
        raise ConfigError(f"{text[:60]!r} is no public key of the form {_PREFIX}…")
    if is_weak(public):
        raise ConfigError(  # it verifies signatures that nobody made
            f"{text!r} is a weak key: anybody can sign for it. Ask its owner for the line that "
            "fedsink prints."
        )
    return public


def read_keys(what: str, path: Path, table: str | None = None) -> dict[bytes, str]:
    """Reads names by their keys: lines ``NAME = "ed25519:…"`` of a TOML file, or of its only table.

    A file that cannot be read, holds something else or one key twice is a ConfigError, which calls
    the file `what`.
    """
    try:
        values: Any = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{what} is no TOML file: {error}.") from None
    if table is not None:
        values = values[table] if set(values) == {table} else None
    if not values or not isinstance(values, dict):
        place = "" if table is None else f"a table [{table}] of "
        raise ConfigError(f'{what} must be {place}lines NAME = "{_PREFIX}…".')
    names: dict[bytes, str] = {}
    for name, text in values.items():
        try:
            key = read_key(str(text))
        except ConfigError as error:
            raise ConfigError(f"{what}, {name}: {error}") from None
        if key in names:
            raise ConfigError(f"{what}: {names[key]} and {name} have one key.")
        names[key] = name
    return names


def make_private_key(path: Path) -> None:
    """Writes a new key, PEM, to a file of mode 0600; leaves an existing file unchanged."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = Ed25519PrivateKey.generate()
        write_once(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def read_private_key(path: Path, if_seen: str) -> Ed25519PrivateKey:
    """Returns the key in a file; `if_seen` is the advice where others can read it, a sentence."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"The key {path} has mode {mode:04o}, so others can read it. {if_seen}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} holds no unencrypted ed25519 key in PEM: restore it from a backup, or remove "
            "it for a new one."
        )
    return key


# An operator's requests


def sign(record: RecordDict, message_type: str, node: str, key: Ed25519PrivateKey) -> None:
    """Adds an operator's signature to a request for the node of this name, replacing any other.

    It covers everything that a request says: its type, run, rounds, plan and rows, by
    `packing.digest`, and its trip of secure aggregation.
    """
    signature = key.sign(_of_request(record, message_type, node))
    _put(record, _OPERATOR, key=key.public_key().public_bytes_raw(), signature=signature)


def signer(record: RecordDict, message_type: str, node: str, operators: Mapping[str, bytes]) -> str:
    """Returns the name of the operator who signed a request for this node, of `operators`.

    The request is hashed, and nothing of it is parsed.

    Raises:
        UnsignedRequestError: the request has no signature.
        UnknownOperatorError: the signature is by a key that is none of `operators`.
        BadSignatureError: the request differs from the signed one, or is for another node.
    """
    signed = _part(record, _OPERATOR)
    public, signature = signed.get("key"), signed.get("signature")
    if not isinstance(public, bytes) or not isinstance(signature, bytes):
        raise UnsignedRequestError(
            "The policy names operators, and nobody has signed this request: have the server's "
            "operator sign it, or leave [operators.keys] out."
        )
    names = [name for name, key in operators.items() if key == public]
    if not names:
        raise UnknownOperatorError(
            f"The request is signed by {shown_key(public[:_BYTES])}, which is none of the policy's "
            f"{', '.join(operators)}."
        )
    if not verifies(public, signature, _of_request(record, message_type, node)):
        raise BadSignatureError(
            f"The signature of {names[0]} is not for this request to this node: it was changed on "
            "its way, or is for another node."
        )
    return names[0]


def _of_request(record: RecordDict, message_type: str, node: str) -> bytes:
    """Returns the bytes that are signed; raises ValueError for a record that is no request."""
    try:
        # A query of secure aggregation has no fields: it says nothing beside its trip.
        query = has_trip(record) and not has_fields(record)
        payload = packed({}, {}) if query else record
        content = digest(message_type, payload) + trip_bytes(record)
    except Exception as error:  # a hostile record makes readers raise whatever they like
        raise ValueError(f"Malformed message: {type(error).__name__}.") from error
    return b"\0".join([b"fedsink request", node.encode(), content])


# A node's key, and its statements


class NodeIdentityKey:
    """The key by which others recognise a node; it never leaves the node's state folder.

    Guarantees:
        - The file has mode 0600, and an existing one is never replaced.
        - A signature for one purpose verifies for no other purpose, and for no request of an
          operator.
    """

    FILE_NAME = "identity.pem"

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.private = private

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Returns the key in a node's state folder, made at the first call."""
        make_private_key(folder / cls.FILE_NAME)
        seen = (
            "Every signature under it could be another's: remove the file, start the node, and "
            "tell those who know its key."
        )
        return cls(read_private_key(folder / cls.FILE_NAME, seen))

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    @property
    def shown(self) -> str:
        """The public half as people read it: ``ed25519:…``."""
        return shown_key(self.public)

    def sign(self, purpose: str, content: bytes) -> bytes:
        """Returns a signature of `content`, 64 bytes, for one purpose."""
        return self.private.sign(_of_node(purpose, content))


def is_signed(public: bytes, purpose: str, content: bytes, signature: bytes) -> bool:
    """Tells whether the holder of a public key signed this content for this purpose."""
    return verifies(public, signature, _of_node(purpose, content))


def _of_node(purpose: str, content: bytes) -> bytes:
    return b"\0".join([b"fedsink node", purpose.encode(), content])


@dataclass(frozen=True)
class StatedCharge:
    """One plan that a run was charged for."""

    adjacency: str  # of the account
    plan: Mapping[str, Any]  # complete; of a part of the noise also how it is shared
    epsilon: float | None  # None: the account has no ceiling
    delta: float
    rounds: int  # number of rounds that were answered

    def __post_init__(self) -> None:
        numbers = [self.delta, self.rounds, *([] if self.epsilon is None else [self.epsilon])]
        if (
            not isinstance(self.adjacency, str)
            or not isinstance(self.plan, Mapping)
            or not all(is_number(number) and 0 <= number <= _BEYOND for number in numbers)
        ):
            raise ValueError("a charge has an adjacency, a plan, and numbers ≥ 0")


@dataclass(frozen=True)
class ChargeStatement:
    """A node's account of one run: its charges, and its owner's rules that they rest on."""

    run: str  # public name of the run
    client: int  # the node's number in it
    clients: int  # number of clients that its owner expects to take part
    noise: str  # how it draws noise, as privacy.json says it: "secret" or "secure"
    aggregation: str  # the policy's rule for parts of the noise, as it was charged
    day: str  # of the signature, by the node's clock (UTC)
    charges: tuple[StatedCharge, ...]  # none: the node has answered nothing of the run

    def __post_init__(self) -> None:
        texts = (self.run, self.noise, self.aggregation, self.day)
        numbers = (self.client, self.clients)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) and not isinstance(number, bool) for number in numbers
        ):
            raise ValueError("it names a run, a client's number and the owner's rules")

    def signed(self, key: NodeIdentityKey) -> dict[str, Any]:
        """Returns the statement, the node's public key and its signature as JSON values."""
        values = read_json(json.dumps(asdict(self)))
        signature = base64.b64encode(key.sign(FORMAT, _canonical(values))).decode()
        return {"format": FORMAT, "statement": values, "key": key.shown, "signature": signature}

    @classmethod
    def verified(cls, values: object) -> tuple[Self, str]:
        """Reads what `signed` returned. Returns the statement and the public key that signed it.

        Guarantees:
            - No part of a statement can be changed without the node's key.

        Values that are no signed statement are a ValueError, a signature that is not that key's
        for this statement is a BadSignatureError.
        """
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f"it is no {FORMAT}, which its owner gets by fedsink ledger statement")
        try:
            stated_values, public = values["statement"], read_key(values["key"])
            signature = base64.b64decode(values["signature"], validate=True)
            content = _canonical(stated_values)
            charges = tuple(StatedCharge(**charge) for charge in stated_values["charges"])
            statement = cls(**{**stated_values, "charges": charges})
        except ConfigError:
            raise ValueError("its key is no key of a node") from None
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is malformed: {str(error)[:80]}") from None
        if not is_signed(public, FORMAT, content, signature):
            raise BadSignatureError("its signature is not by its key for this statement")
        return statement, shown_key(public)


def _canonical(values: object) -> bytes:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


# A node's words of itself, and a server's to it


def identity_query(node: int) -> Message:
    """Returns the question for a node's identity."""
    from flwr.app import Message, RecordDict

    return Message(RecordDict(), dst_node_id=node, message_type=IDENTITY)


def identity_record(client: int) -> RecordDict:
    """Returns a node's answer."""
    from flwr.app import RecordDict

    record = RecordDict()
    _put(record, _IDENTITY, client=client, protocol=PROTOCOL_VERSION)
    return record


def stated_client(record: RecordDict) -> int:
    """Returns the client's number in an answer of a node that speaks this version."""
    identity = _part(record, _IDENTITY)
    version, client = identity.get("protocol"), identity.get("client")
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(version, PROTOCOL_VERSION)
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise ValueError(f"{str(client)[:40]!r} is no client's number.")
    return client


def show_receipts(record: RecordDict, receipts: Iterable[str]) -> None:
    """Adds the receipts that a server keeps to its question for a node's identity."""
    _put(record, _SHOWN, receipts=list(receipts))


def shown_receipts(record: RecordDict) -> list[str]:
    """Returns the receipts in a question: a short list of short texts, or a ValueError."""
    shown = _part(record, _SHOWN).get("receipts", [])
    if (
        not isinstance(shown, list)
        or len(shown) > MOST_RECEIPTS
        or not all(isinstance(text, str) and len(text) <= LONGEST for text in shown)
    ):
        raise ValueError(f"A server shows at most {MOST_RECEIPTS} receipts, each a short text.")
    return shown


class NodeReceipt(NamedTuple):
    """Name of a node under a policy, and a receipt for its ledger."""

    name: str
    receipt: str


def give(record: RecordDict, receipt: NodeReceipt) -> None:
    """Adds a node's name and receipt to its answer."""
    _put(record, _GIVEN, **receipt._asdict())


def node_receipt(record: RecordDict) -> NodeReceipt | None:
    """Returns the name and the receipt in a node's answer; None where either is unusable."""
    values = _part(record, _GIVEN)
    receipt = NodeReceipt(str(values.get("name", "")), str(values.get("receipt", "")))
    return receipt if all(0 < len(text) <= LONGEST for text in receipt) else None


def ask_statement(record: RecordDict, run: str) -> None:
    """Adds the wish for a statement on a run to a question for a node's identity."""
    _put(record, _STATEMENT, run=run)


def asked_run(record: RecordDict) -> str | None:
    """Returns the run that a question wants a statement on, or None."""
    run = _part(record, _STATEMENT).get("run")
    return run if isinstance(run, str) else None


def give_statement(record: RecordDict, signed: Mapping[str, Any]) -> None:
    """Adds a signed statement to a node's answer."""
    _put(record, _STATEMENT, signed=json.dumps(signed))


def given_statement(record: RecordDict) -> dict[str, Any] | None:
    """Returns the signed statement in a node's answer; None where there is no valid one."""
    text = _part(record, _STATEMENT).get("signed")
    if not isinstance(text, str) or len(text) > LONGEST_STATEMENT:
        return None
    try:
        signed: dict[str, Any] = read_json(text)
        ChargeStatement.verified(signed)
    except (ValueError, RecursionError, BadSignatureError):
        return None
    return signed
