from __future__ import annotations

from pathlib import Path

import pytest

from .small_runs import evaluated, make


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small runs, some of them evaluated; nobody may change it."""
    folder = tmp_path_factory.mktemp("small-runs")
    make(folder)
    for name, cnn in (("a0", 0.90), ("a1", 0.80), ("a2", 0.85), ("local", 0.7)):
        evaluated(folder / name, cnn)
    return folder
