"""Events as text: a ledger of ε cannot be recomposed, a ledger of events can.

>>> import dp_accounting
>>> event_to_json(dp_accounting.GaussianDpEvent(2.0))
'{"class": "GaussianDpEvent", "noise_multiplier": 2.0}'
"""

from __future__ import annotations

import json
from typing import Any

from fedsink.errors import LedgerError, PrivacyError
from fedsink.values import privacy_checks as checks

_MODULE = "dp_accounting.dp_event"


def event_to_json(event: Any) -> str:
    """A `dp_accounting.DpEvent` as JSON; `event_from_json` gives an equal event back.

    Raises:
        PrivacyError: it is no event, or one that cannot be written down.
    """
    try:
        return json.dumps(_plain(event.to_named_tuple()), sort_keys=True)
    except (AttributeError, TypeError, ValueError) as error:
        raise PrivacyError(
            f"a ledger stores serialisable events, received {type(event).__name__} ({error}): "
            "charge a dp_accounting.DpEvent."
        ) from None


def event_from_json(text: str) -> Any:
    """The event that `event_to_json` wrote; classes of dp_accounting are read and no others.

    Raises:
        LedgerError: the text is damaged or names no event.
    """
    try:
        return _event(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LedgerError(
            f"an event in the ledger is damaged ({error}): restore the ledger from a backup."
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "class_name"):
        if value.module_name != _MODULE:
            raise ValueError(f"{value.class_name} is not an event of dp_accounting")
        fields = value._asdict()
        del fields["module_name"]
        return {"class": fields.pop("class_name")} | {k: _plain(v) for k, v in fields.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _event(fields: Any) -> Any:
    if isinstance(fields, list):
        return [_event(item) for item in fields]
    if not isinstance(fields, dict):
        return fields
    events = checks.require(_MODULE)
    name = fields["class"]
    kind = getattr(events, name, None)
    # Never import what a file names: only event classes of this one module are built.
    if not (isinstance(kind, type) and issubclass(kind, events.DpEvent)):
        raise ValueError(f"{name!r} is no event")
    return kind(**{key: _event(value) for key, value in fields.items() if key != "class"})
