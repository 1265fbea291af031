"""What a node has released and what that cost, on its own disk: charge, commit, then release.

The ledger stores events (`dp_accounting.DpEvent`) in one SQLite file with a write-ahead log. It
knows no network.
"""

from __future__ import annotations

from fedsink.privacy.ledger.budget import Budget
from fedsink.privacy.ledger.charge import Charge
from fedsink.privacy.ledger.check import problems
from fedsink.privacy.ledger.database import Database
from fedsink.privacy.ledger.events import event_from_json, event_to_json
from fedsink.privacy.ledger.export import export
from fedsink.privacy.ledger.ledger import Ledger
from fedsink.privacy.ledger.places import Asked, Claim, Reservation, Use
from fedsink.privacy.ledger.report import AccountReport, RunReport, refusals, report

__all__ = [
    "AccountReport",
    "Asked",
    "Budget",
    "Charge",
    "Claim",
    "Database",
    "Ledger",
    "Reservation",
    "RunReport",
    "Use",
    "event_from_json",
    "event_to_json",
    "export",
    "problems",
    "refusals",
    "report",
]
