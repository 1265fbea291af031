"""fedsink: image generators learnt from data that stays with its owners."""

from __future__ import annotations

__version__ = "0.1.0"
