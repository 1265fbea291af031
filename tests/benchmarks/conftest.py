from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a script of benchmarks/, which import one another by their bare names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (
            getattr(sys.modules[name], "__file__", None)
            and Path(str(sys.modules[name].__file__)).parent == FOLDER
        ):
            del sys.modules[name]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a recipe, a row and another file, all committed."""
    root = tmp_path / "checkout"
    for name in ("fedsink/conf/a.yaml", "benchmarks/rows.yaml", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a: 1\n")
    git(root, "init", "--quiet")
    commit_all(root)
    return root


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)
    return done.stdout.decode().strip()


def commit_all(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=a")
