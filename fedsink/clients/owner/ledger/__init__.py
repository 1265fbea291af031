"""A node's ledger of its releases and their cost, on its own disk: charge, commit, release.

One rule: each plan is charged whole before its first release, and the plans of an account add up.
The ledger is one SQLite file with a write-ahead log, and uses no network. A node's entry point is
`ledger.Ledger`, its owner's `account_report.report`.
"""
