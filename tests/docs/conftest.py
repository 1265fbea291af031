from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "docs" / "hooks"


@pytest.fixture(scope="session")
def hook() -> Callable[[str], ModuleType]:
    """Imports a module of docs/hooks, as MkDocs does."""

    def find(name: str) -> ModuleType:
        sys.path.insert(0, str(HOOKS))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.pop(0)

    return find
