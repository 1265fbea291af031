from __future__ import annotations

from tests.strategies.conftest import *  # noqa: F403
from tests.strategies.conftest import _tiny_points  # noqa: F401
