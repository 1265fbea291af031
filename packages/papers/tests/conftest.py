"""The settings and fixtures of fedsink's tests, which these share."""

from __future__ import annotations

from tests.conftest import *  # noqa: F403
from tests.conftest import _own_folders  # noqa: F401
