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
from fedsink.protocol.signatures import read_key, shown_key
from fedsink.values import is_number, read_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

FORMAT = "fedsink charge statement 2"
LONGEST_STATEMENT = 100_000
"""Characters of a signed statement that a server keeps."""

_RECORD = "statement"
_BEYOND = 1e300


@dataclass(frozen=True)
class StatedCharge:
    """One plan that a run was charged for.

    Attributes:
        adjacency: of the account.
        plan: what was charged, complete; of a share of noise also how it is shared.
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
    """A node's account of one run: its charges, and its owner's rules that they rest on.

    Attributes:
        run: public name of the run.
        client: the node's number in the run.
        clients: number of clients that its owner expects to take part.
        noise: how it draws noise, as privacy.json says it: "secret" or "secure".
        aggregation: the policy's rule for replies with a share of the noise, as it was charged.
        day: of the signature, by the node's clock (UTC).
        charges: of the run; none: the node has answered nothing of it.
    """

    run: str
    client: int
    clients: int
    noise: str
    aggregation: str
    day: str
    charges: tuple[StatedCharge, ...]

    def __post_init__(self) -> None:
        texts = (self.run, self.noise, self.aggregation, self.day)
        numbers = (self.client, self.clients)
        if not all(isinstance(text, str) for text in texts) or not all(
            isinstance(number, int) and not isinstance(number, bool) for number in numbers
        ):
            raise ValueError("it names a run, a client's number and the owner's rules")

    def signed(self, key: NodeIdentityKey) -> dict[str, Any]:
        """Returns the statement, the node's public key and its signature as JSON values."""
        said = read_json(json.dumps(asdict(self)))
        signature = key.sign(FORMAT, _canonical(said))
        return {
            "format": FORMAT,
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
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f"it is no {FORMAT}, which its owner gets by fedsink ledger statement")
        try:
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
        if not is_signed(public, FORMAT, content, signature):
            raise BadSignatureError("its signature is not by its key for this statement")
        return statement, shown_key(public)


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
        signed: dict[str, Any] = read_json(text)
        ChargeStatement.verified(signed)
    except (ValueError, RecursionError, BadSignatureError):
        return None
    return signed
