from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parent.parent.parent / "deploy" / "demo.py"


@pytest.fixture(scope="session")
def demo() -> ModuleType:
    """deploy/demo.py as a module."""
    spec = importlib.util.spec_from_file_location("fedsink_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lab(demo: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """A SuperLink with TLS that knows two hospitals; no node is started yet."""
    lab = demo.Lab(tmp_path)
    try:
        lab.prepare("fast")
        lab.start_superlink()
        yield lab
    finally:
        lab.stop()
