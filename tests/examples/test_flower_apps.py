"""The apps for Flower, as they are packed; a README's `flwr run .` is a scene of tests/docs."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_TOTAL_BYTES

from fedsink.clients.owner.policy_file import read_policy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
APPS = {
    "flower-digits": {"__init__.py", "client_app.py", "server_app.py", "policy.toml"},
    "guarded-fedavg": {"__init__.py", "client_app.py", "server_app.py", "task.py"},
}


@pytest.mark.parametrize("name", APPS)
def test_it_is_within_the_limits_of_flowers_hub(name: str) -> None:
    app = EXAMPLES / name
    files = [path for path in app.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= min(MAX_FILE_BYTES, 10**6)
    assert sum(sizes) <= min(MAX_TOTAL_BYTES, 10**7)
    project = tomllib.loads((app / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []  # Flower installs nothing at run time


@pytest.mark.parametrize("name", APPS)
def test_flower_packs_the_whole_package(name: str) -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(EXAMPLES / name))) as fab:
        names = set(fab.namelist())
    assert {f"{name.replace('-', '_')}/{file}" for file in APPS[name]} <= names


def test_a_guarded_owner_configures_what_the_run_does() -> None:
    """So that a round in the simulation costs what it costs at a node."""
    app = read_policy(EXAMPLES / "guarded-fedavg" / "policy.toml").app
    assert app is not None
    assert (app.client, app.plan) == ("guarded_fedavg.client_app:app", None)
    run = tomllib.loads((EXAMPLES / "guarded-fedavg" / "pyproject.toml").read_text())
    config = dict(run["tool"]["flwr"]["app"]["config"])
    assert config.pop("num-server-rounds") == app.rounds
    assert config == app.config
