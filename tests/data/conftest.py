from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsink.data.sources import forget


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, so that no test reads or fills the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "fedsink"


@pytest.fixture
def read_again() -> Iterator[None]:
    """Files are read, whatever this process has loaded before."""
    forget()
    yield
    forget()
