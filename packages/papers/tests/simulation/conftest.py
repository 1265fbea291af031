from __future__ import annotations

from tests.simulation.conftest import *  # noqa: F403
from tests.simulation.conftest import _fresh_nodes  # noqa: F401
