"""A node's signed statement of what one run was charged, for whoever wants to verify the run.

A server asks for it with its last question for a node's identity, and keeps it in nodes.json. It
can leave a statement out, and cannot write or change one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from fedsink.errors import BadSignatureError, ConfigError
from fedsink.protocol.identity_key import NodeIdentityKey, is_signed
from fedsink.protocol.signatures import read_key
from fedsink.values import is_number

if TYPE_CHECKING:
    from flwr.app import RecordDict

PURPOSE = "charge statement 1"
LONGEST_STATEMENT = 100_000
"""Characters of a signed statement that a server keeps."""

_RECORD = "statement"
_BEYOND = 1e300


@dataclass(frozen=True)
class StatedCharge:
    """One plan that a run was charged for.

    Attributes:
        adjacency: of the account.
        plan: what was charged, complete.
        epsilon: the charge; None: the account counts Rényi costs, which add up to no ε of a run.
        delta: the charge.
        rounds: number of rounds that were answered.
    """

    adjacency: str
    plan: Mapping[str, Any]
    epsilon: float | None
    delta: float
    rounds: int

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
    """A node's account of one run: its charges.

    Attributes:
        run: public name of the run.
        node: the node's public name, at random (`Given.name`).
        client: its number in the run.
        clients: number of clients that its owner expects to take part.
        charges: of the run; none: the node has answered nothing of it.
    """

    run: str
    node: str
    client: int
    clients: int
    charges: tuple[StatedCharge, ...]

    def __post_init__(self) -> None:
        texts = (self.run, self.node)
        numbers = (self.client, self.clients)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) and not isinstance(number, bool) for number in numbers
        ):
            raise ValueError("it names a run, a node and a client's number")

    def signed(self, key: NodeIdentityKey) -> dict[str, Any]:
        """Returns the statement, the node's public key and its signature as JSON values."""
        said = json.loads(json.dumps(asdict(self)))
        signature = key.sign(PURPOSE, _canonical(said))
        return {
            "statement": said,
            "key": key.shown,
            "signature": base64.b64encode(signature).decode(),
        }

    @classmethod
    def verified(cls, values: object) -> tuple[Self, str]:
        """Reads what `signed` returned. Returns the statement and the public key that signed it.

        Guarantees:
            - No part of a statement can be changed without the node's key.

        Raises:
            ValueError: the values are no signed statement.
            BadSignatureError: the signature is not that key's for this statement.
        """
        try:
            if not isinstance(values, dict):
                raise ValueError("it is no table")
            said, key = values["statement"], values["key"]
            signature = base64.b64decode(values["signature"], validate=True)
            content = _canonical(said)
            public = read_key(key)
            charges = tuple(StatedCharge(**charge) for charge in said["charges"])
            statement = cls(**{**said, "charges": charges})
        except ConfigError:
            raise ValueError("its key is no key of a node") from None
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is malformed: {str(error)[:80]}") from None
        if not is_signed(public, PURPOSE, content, signature):
            raise BadSignatureError("its signature is not by its key for this statement")
        return statement, key


def _canonical(said: object) -> bytes:
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def ask_statement(record: RecordDict, run: str) -> None:
    """Adds the wish for a statement on a run to a question for a node's identity."""
    from flwr.app import ConfigRecord

    record[_RECORD] = ConfigRecord({"run": run})


def asked_run(record: RecordDict) -> str | None:
    """Returns the run that a question wants a statement on, or None."""
    values: Mapping[str, object] = record.config_records.get(_RECORD, {})
    run = values.get("run")
    return run if isinstance(run, str) else None


def give_statement(record: RecordDict, signed: Mapping[str, Any]) -> None:
    """Adds a signed statement to a node's answer."""
    from flwr.app import ConfigRecord

    record[_RECORD] = ConfigRecord({"signed": json.dumps(signed)})


def given_statement(record: RecordDict) -> dict[str, Any] | None:
    """Returns the signed statement in a node's answer; None where there is no valid one."""
    values: Mapping[str, object] = record.config_records.get(_RECORD, {})
    text = values.get("signed")
    if not isinstance(text, str) or len(text) > LONGEST_STATEMENT:
        return None
    try:
        signed: dict[str, Any] = json.loads(text)
        ChargeStatement.verified(signed)
    except (ValueError, RecursionError, BadSignatureError):
        return None
    return signed
