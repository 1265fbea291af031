from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from fedsink.flower_internals import become

from ..support.tiny import points


@pytest.fixture(autouse=True)
def _tiny_points(install_source: Callable[..., None]) -> None:
    install_source(points)
    become(1, 1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The owner's log has a line for each refusal."""
    log = logging.getLogger("fedsink.clients")
    log.disabled = True
    yield
    log.disabled = False
