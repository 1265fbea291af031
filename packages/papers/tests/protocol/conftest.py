from __future__ import annotations

from tests.protocol.conftest import *  # noqa: F403
