"""Scripts outside the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def script(path: Path) -> ModuleType:
    """Runs a script as a module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look it up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module
