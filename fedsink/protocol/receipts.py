"""What a node gives a server to keep, so that a ledger that was put back can be told from it.

To the server a receipt is a text without meaning. It shows all that it keeps to every node that it
asks who it is; a node knows its own by a key that never leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from flwr.app import RecordDict

LONGEST = 128  # characters of a name or a receipt
MOST_RECEIPTS = 10_000  # that a node looks at
_SHOWN, _GIVEN = "receipts", "owner"


class Given(NamedTuple):
    """What a node under a policy says of itself: its name, and a receipt for its ledger."""

    name: str
    receipt: str


def show_receipts(record: RecordDict, receipts: Iterable[str]) -> None:
    """Add what a server keeps to its question who a node is."""
    from flwr.app import ConfigRecord

    record[_SHOWN] = ConfigRecord({"receipts": list(receipts)})


def shown_receipts(record: RecordDict) -> list[str]:
    """The receipts in a question.

    Raises:
        ValueError: they are no short list of short texts.
    """
    values: Mapping[str, object] = record.config_records.get(_SHOWN, {})
    shown = values.get("receipts", [])
    if (
        not isinstance(shown, list)
        or len(shown) > MOST_RECEIPTS
        or not all(isinstance(each, str) and len(each) <= LONGEST for each in shown)
    ):
        raise ValueError(f"A server shows at most {MOST_RECEIPTS} receipts, each a short text.")
    return [str(each) for each in shown]


def give(record: RecordDict, given: Given) -> None:
    """Add a node's name and receipt to its answer."""
    from flwr.app import ConfigRecord

    record[_GIVEN] = ConfigRecord(dict(given._asdict()))


def given_by(record: RecordDict) -> Given | None:
    """What a node gave; None where it gave nothing of use."""
    values: Mapping[str, object] = record.config_records.get(_GIVEN, {})
    given = Given(str(values.get("name", "")), str(values.get("receipt", "")))
    return given if all(0 < len(each) <= LONGEST for each in given) else None
