from __future__ import annotations

from tests.data.conftest import cache  # noqa: F401
