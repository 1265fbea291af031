"""Decisions of an owner and the memory of a node: policy, ledger, replies, states."""
