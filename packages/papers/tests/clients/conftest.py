from __future__ import annotations

from tests.clients.conftest import *  # noqa: F403
from tests.clients.conftest import _tiny_points  # noqa: F401
