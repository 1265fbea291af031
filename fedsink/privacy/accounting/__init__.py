"""Accounting: ε of events, composed and amplified, and the noise that a target ε needs."""
