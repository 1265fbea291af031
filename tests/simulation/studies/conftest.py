"""A study of a few clients and rounds, played once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsink.conf.acting import compose_config
from fedsink.simulation.simulated_run import start

SMALL = (
    "experiment=debug_inverted",
    "clients=40",
    "rounds=4",
    "seed=0",
    "study.clean=0.9",
    "study.suspect=0.5",
    "study.pictures=50",
    "report.pictures=0",
    "report.html=false",
)


def small(*overrides: str) -> dict[str, Any]:
    """The configuration of the debugging task on 40 clients, four rounds a run."""
    return compose_config([*SMALL, *overrides])


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of that study, played without interruption; tests must not change it."""
    return start(small(), tmp_path_factory.mktemp("studies") / "played")
