"""A node's ledger of what it released and what that cost, on its own disk: charge, commit, release.

It stores events (`dp_accounting.DpEvent`) in one SQLite file with a write-ahead log, and knows no
network. `ledger.Ledger` is the entry point of a node, `report.report` that of its owner.
"""
