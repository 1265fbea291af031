"""Answers of a node: one for each method, their base and their registry."""
