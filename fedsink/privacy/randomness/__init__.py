"""Randomness: keyed streams, secret keys, and noise that floating point does not betray."""
