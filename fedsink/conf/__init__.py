"""Hydra configuration: `pkg://fedsink.conf` needs this package to exist."""
