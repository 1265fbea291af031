"""A ledger as JSON, for an auditor: its events and sums, nothing that is computed from records."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fedsink.clients.ledger.database import Database
from fedsink.clients.ledger.report import report

FORMAT = "fedsink ledger 1"


def export(database: Database) -> dict[str, Any]:
    """Accounts, runs, plans and events, JSON-able.

    Guarantees:
        - No fingerprint and no digest is in it.
    """
    accounts = []
    for account in report(database):
        rows = database.rows(
            "SELECT plan, event, use FROM reservations JOIN runs ON run = runs.id"
            " JOIN accounts ON account = accounts.id WHERE lineage=? AND adjacency=?"
            " ORDER BY reservations.id",
            account.lineage,
            account.adjacency,
        )
        runs = [
            asdict(run) | {"plan": json.loads(plan), "event": json.loads(event),
                           "use": json.loads(use or "null")}
            for run, (plan, event, use) in zip(account.runs, rows, strict=True)
        ]  # fmt: skip
        accounts.append(asdict(account) | {"runs": runs})
    return {"format": FORMAT, "accounts": accounts}
