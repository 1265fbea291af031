"""What has to be said to libraries before they are imported."""

from __future__ import annotations

import os


def quieten_flower() -> None:
    """Have Flower send no telemetry, look for no update, and log warnings alone.

    What the environment says already stands. Flower reads it once, when it is imported.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")
