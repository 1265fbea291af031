"""The app for Flower, as it is packed. `flwr run .` is a scene of its README (tests/docs)."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_TOTAL_BYTES

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-digits"


def test_it_is_within_the_limits_of_flowers_hub() -> None:
    files = [path for path in APP.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= min(MAX_FILE_BYTES, 10**6)
    assert sum(sizes) <= min(MAX_TOTAL_BYTES, 10**7)
    project = tomllib.loads((APP / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []  # Flower installs nothing at run time


def test_flower_packs_code_and_policy() -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP))) as fab:
        names = set(fab.namelist())
    package = {"__init__.py", "client_app.py", "server_app.py", "policy.toml"}
    assert {f"flower_digits/{name}" for name in package} <= names
