from __future__ import annotations

from tests.data.conftest import cache, read_again  # noqa: F401
