"""A node's ledger of its releases and their cost, on its own disk: charge, commit, release.

The ledger stores events (`dp_accounting.DpEvent`) in one SQLite file with a write-ahead log, and
uses no network. A node's entry point is `ledger.Ledger`, its owner's `account_report.report`.
"""
