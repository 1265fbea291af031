"""deploy/ ships two names to other people's machines, and no code."""

from __future__ import annotations

import importlib
import io
import tomllib
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

APP = Path(__file__).resolve().parent.parent.parent / "deploy"


def test_the_bundle_that_a_submitter_ships_holds_the_configuration_alone() -> None:
    """Shipped code would run beside the private data, and shadow the owner's packages."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP))) as bundle:
        files = set(bundle.namelist()) - {".info/CONTENT"}
        shipped = tomllib.loads(bundle.read("pyproject.toml").decode())
    assert files == {"pyproject.toml"}
    assert shipped["project"]["dependencies"] == []


def test_the_names_in_it_lead_to_the_apps() -> None:
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for name, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        module, _, attribute = app["components"][name].partition(":")
        assert isinstance(getattr(importlib.import_module(module), attribute), kind)
    assert set(app["config"]) == {"action", "name", "config"}
