"""What an owner decides, and what a node remembers: policy, ledger, replies, states."""
