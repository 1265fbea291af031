"""Mechanisms: clips with their sensitivity, and what privatizes a record at its owner."""
