"""Foundations of every method: rounds, the central mode and its statement, training."""
