"""Signs requests of a named operator for one node, and verifies the signatures.

A signature (ed25519) covers everything that a request says (its type, run, rounds, plan and rows,
by `packing.digest`; its trip of secure aggregation) and the name of the node that it is for.
"""

from __future__ import annotations

import base64
import binascii
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsink.errors import (
    BadSignatureError,
    ConfigError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.protocol.aggregation import has_trip, trip_bytes
from fedsink.protocol.packing import digest, has_fields, packed
from fedsink.secagg.identities import is_weak

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from flwr.app import RecordDict

_PREFIX, _BYTES = "ed25519:", 32
_OPERATOR = "operator"


def sign(record: RecordDict, message_type: str, node: str, key: Ed25519PrivateKey) -> None:
    """Adds a signature to a request, replacing any other.

    Args:
        record: result of `pack`.
        message_type: type of the message.
        node: the name that the receiver has given.
        key: the operator's.
    """
    from flwr.app import ConfigRecord

    signature = key.sign(_covered(record, message_type, node))
    public = key.public_key().public_bytes_raw()
    record[_OPERATOR] = ConfigRecord({"key": public, "signature": signature})


def signer(record: RecordDict, message_type: str, node: str, operators: Mapping[str, bytes]) -> str:
    """Returns the name of the operator who signed a request for this node.

    The request is hashed, and nothing of it is parsed.

    Args:
        record: the message's content.
        message_type: type of the message.
        node: this node's name.
        operators: public keys, 32 bytes each, by their owner's names for them.

    Raises:
        UnsignedRequestError: the request has no signature.
        UnknownOperatorError: the signature is by a key that is none of `operators`.
        BadSignatureError: the request differs from the signed one, or is for another node.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed: Mapping[str, object] = record.config_records.get(_OPERATOR, {})
    public, signature = signed.get("key"), signed.get("signature")
    if not isinstance(public, bytes) or not isinstance(signature, bytes):
        raise UnsignedRequestError(
            "The policy names operators, and nobody has signed this request: have the server's "
            "operator sign it, or leave [operators.keys] out."
        )
    names = [name for name, known in operators.items() if known == public]
    if not names:
        raise UnknownOperatorError(
            f"The request is signed by {shown_key(public[:_BYTES])}, which is none of the policy's "
            f"{', '.join(operators)}."
        )
    covered = _covered(record, message_type, node)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, covered)
    except (InvalidSignature, ValueError):
        raise BadSignatureError(
            f"The signature of {names[0]} is not for this request to this node: it was changed on "
            "its way, or is for another node."
        ) from None
    return names[0]


def shown_key(public: bytes) -> str:
    """A public key as policies state it."""
    return _PREFIX + base64.b64encode(public).decode()


def read_key(text: str) -> bytes:
    """Reads the public key that `shown_key` wrote.

    Raises:
        ConfigError: it is no key, or a weak key, which verifies signatures that nobody made.
    """
    try:
        public = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        public = b""
    if not text.startswith(_PREFIX) or len(public) != _BYTES:
        raise ConfigError(f"{text[:60]!r} is no public key of the form {_PREFIX}…")
    if is_weak(public):
        raise ConfigError(
            f"{text!r} is a weak key: anybody can sign for it. Ask its owner for the line that "
            "fedsink prints."
        )
    return public


def read_keys(what: str, path: Path, table: str | None = None) -> dict[bytes, str]:
    """Reads names by their keys: lines ``NAME = "ed25519:…"`` of a TOML file, or of its only table.

    Args:
        what: the file's name in errors.
        path: of the file.
        table: name of the table that holds the lines.

    Raises:
        ConfigError: it cannot be read, holds something else, or one key twice.
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


def _covered(record: RecordDict, message_type: str, node: str) -> bytes:
    """Returns the bytes that are signed; raises ValueError for a record that is no request."""
    try:
        # A query of secure aggregation has no fields: it says nothing beside its trip.
        query = has_trip(record) and not has_fields(record)
        said = packed({}, {}) if query else record
        content = digest(message_type, said) + trip_bytes(record)
    except Exception as error:  # a hostile record makes readers raise whatever they like
        raise ValueError(f"Malformed message: {type(error).__name__}.") from error
    return b"\0".join([b"fedsink request", node.encode(), content])
